"""Open a published release and search it.

Queries are encoded with the release's encoder. An open release can follow newer releases while threads search
it.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack

import numpy as np
import pyarrow as pa

from pipeline.errors import ConfigError, QueryError, SpaceMismatch
from pipeline.index.search.release_files import OpenOptions, ReleaseFiles
from pipeline.store.releases.manifest import ReleaseManifest
from pipeline.store.releases.release import Releases
from pipeline.store.rows.arrays import python_values
from pipeline.text.normalize import check_sequence


def open_release(
    uri: str | Path | tuple[str | Path, str | Path] | Releases,
    number: int | None = None,
    *,
    parts: Sequence[int] | None = None,
    verify: bool = True,
    device: str = "cpu",
) -> "OpenRelease":
    """Open the current release below a root, or release `number`, for searching.

    Args:
        uri: the root, a directory or a URI; or (root, root of the commits) if the commits are in another
            store; or `Releases`.
        parts: numbers of the parts of the index to open, from 0; None: all. Several searchers can share a
            large index: each opens some of its parts, and finds the nearest rows in these.
        verify: compare every file with its sha256, which reads all of them once. Remote files are always
            checked when they are fetched.
        device: torch device that encodes queries.

    Raises:
        ConfigError: the index has no part with one of the numbers.
        DataError: there is no release, or a file was changed.
    """
    if isinstance(uri, Releases):
        releases = uri
    else:
        releases = Releases.open(*(uri if isinstance(uri, tuple) else (uri,)))
    options = OpenOptions(releases.store, None if parts is None else frozenset(parts), verify, device)
    manifest = releases.get_or_current(number)
    return OpenRelease(releases, ReleaseFiles(manifest, options), follows=number is None)


class VectorOptions(TypedDict, total=False):
    """Options of a search whose queries are vectors; see `OpenRelease.search`."""

    space_id: str | None


class OpenRelease:
    """An open release that can be searched; `open_release` returns it.

    Threads may share it. `refresh` swaps all files at once; a running search keeps the files it began with.
    As a context manager, it is closed at the end of the block.
    """

    def __init__(self, releases: Releases, files: ReleaseFiles | None, follows: bool) -> None:
        self._releases, self._opened, self._follows = releases, files, follows

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release the files and the encoder. Searches that run go on; later ones raise ValueError."""
        self._opened = None

    @property
    def _files(self) -> ReleaseFiles:
        if self._opened is None:
            raise ValueError("the release is closed; open it again")
        return self._opened

    def __repr__(self) -> str:
        if self._opened is None:
            return f"OpenRelease({self._releases.store.uri!r}, closed)"
        manifest = self.manifest
        return (
            f"OpenRelease({self._releases.store.uri!r}, release {manifest.release}: {manifest.rows:,} "
            f"rows, index {manifest.index.kind})"
        )

    @property
    def number(self) -> int:
        """Number of the release."""
        return self.manifest.release

    @property
    def space_id(self) -> str:
        """Identity of the release's vector space."""
        return self.manifest.space_id

    @property
    def releases(self) -> Releases:
        """The releases of the root."""
        return self._releases

    @property
    def manifest(self) -> ReleaseManifest:
        """The release's manifest."""
        return self._files.manifest

    def __len__(self) -> int:
        """Number of live rows in the open parts, and of those that pass the filter of `within`."""
        return len(self._files)

    def within(self, where: str) -> "OpenRelease":
        """Return the release that is open now, limited to the rows that pass a filter; see `search`.

        No method of the returned object finds, counts or returns another row, whatever its arguments are. It
        is never swapped. Load the encoder first (`encode`), so that all such objects share it.

        Raises:
            ConfigError: the filter is invalid.
        """
        return OpenRelease(self._releases, self._files.within(where), follows=False)

    def count(self, where: str | None = None, proceed: Callable[[], None] = lambda: None) -> int:
        """Return the number of rows that a filter lets pass, and keep these rows for later searches.

        See `search` for filters. Without one, it is the number of all rows.

        Args:
            proceed: called often while the filter is evaluated; may raise an error to stop the evaluation.

        Raises:
            ConfigError: the filter is invalid.
        """
        if where is None and not self._files.filters.are_limited:
            return len(self)
        return self._files.filters.select(where, proceed).rows

    def validate(self) -> None:
        """Read and check every row of the ids, as opening with `verify` does.

        Raises:
            DataError: a file could not be searched safely.
        """
        self._files.ids.validate()

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Encode texts as queries, (n, d) float32, with the release's encoder, loaded at the first call.

        Raises:
            SpaceMismatch: the stored encoder is not the one that encoded the rows.
        """
        return self._files.encode(texts)

    def search(
        self,
        queries: str | Sequence[str] | np.ndarray,
        k: int = 10,
        *,
        texts: bool = False,
        where: str | None = None,
        group: bool = False,
        **options: Unpack[VectorOptions],
    ) -> pa.Table:
        """Search for the k nearest rows of each query.

        If the lists that a query visits hold fewer than k live rows, more lists are visited (nprobe is
        doubled). So a query has fewer than k answers only if the release has fewer rows, or if an HNSW or PQ
        fast-scan index finds no more.

        Args:
            queries: texts; or raw vectors (q, d) of the release's encoder, or a single one (d,).
            texts: add a column text, read from the corpus units. If corpus.keep names text, the ids files
                have the column already.
            where: a filter on the id and the columns that corpus.keep names, such as
                "price < 10 and lang in ('de', 'en')". As in SQL, a comparison with null is not true. NaN
                differs from every number. A query has k answers if k rows pass. The rows of the latest 16
                filters are kept.
            group: search for the k nearest documents of a release with corpus.chunk, and return the best
                chunk of each.
            options: space_id, the space of the query vectors, which are refused if the release has another.

        Returns:
            Columns query (int32, from 0), rank (int32, from 1), id, score (float32, cosine), and those that
            corpus.keep names; the best answer of each query first.

        Raises:
            TypeError: the queries are neither texts nor an array, or the filter is not a text.
            ConfigError: the filter is invalid, or the release has no chunks to group.
            QueryError: a query is neither a text nor a row of an array; vectors have another dimension, NaN
                or infinity, or are zero.
            DataError: a file of the release is missing or damaged; MissingTexts for a corpus unit.
        """
        if not isinstance(k, int | np.integer) or k < 1:
            raise ConfigError(
                "search: k", "a whole number, at least 1", repr(k), "ask for one answer or more"
            )
        k = int(k)  # faiss refuses integers of NumPy
        space_id = options.get("space_id")
        if unexpected := options.keys() - VectorOptions.__annotations__.keys():
            raise TypeError(f"search() got an unexpected keyword argument {min(unexpected)!r}")
        if where is not None and not isinstance(where, str):
            raise TypeError(f"where: expected a text like 'price < 10', found {type(where).__name__}")
        is_texts = not isinstance(queries, np.ndarray) or queries.dtype.kind in "OUT"
        if is_texts:
            check_sequence(queries, "queries", ", or a NumPy array of vectors")
        files = self._files
        if where is not None:
            files.filters.select(where)  # before an encoder is loaded for the queries
        if space_id is not None and space_id != files.manifest.space_id:
            raise SpaceMismatch(
                "search",
                f"vectors of space {files.manifest.space_id}",
                f"space {space_id}",
                "encode the queries with the release's encoder",
            )
        if not is_texts:
            vectors = np.atleast_2d(queries)
            return files.search(vectors, k, texts=texts, where=where, group=group)
        query_texts = [queries] if isinstance(queries, str) else list(queries)
        vectors = files.encode(query_texts)
        # Encoders of word vectors give zero for a text without a word of their vocabulary.
        if len(unknown := np.flatnonzero(~vectors.any(axis=1))):
            raise QueryError(
                "search: query",
                "a word that the release's encoder knows",
                repr(query_texts[unknown[0]][:80]),
                "use other words",
            )
        return files.search(vectors, k, texts=texts, where=where, group=group)

    def rows(self, addresses: np.ndarray, *, texts: bool = False) -> pa.Table:
        """Return the rows of `addresses` (n,) int64 in their order: id, kept columns, and text if asked for.

        Raises:
            DataError: no row has one of the addresses; also MissingTexts for a missing corpus unit.
        """
        return self._files.rows(addresses, texts=texts)

    def get(self, row_id: str | int, *, texts: bool = True) -> dict[str, Any]:
        """Return the live row with an id: the id, the kept columns and, unless `texts` is false, its text.

        Raises:
            QueryError: no live row has the id.
            DataError: the unit with its text is missing or damaged (MissingTexts).
        """
        row = self._files.rows(self._files.address(row_id), texts=texts)
        return {name: python_values(row[name])[0] for name in row.column_names}

    def vector(self, row_id: str | int) -> np.ndarray:
        """Return the raw vector (d,) float32 of a live row, which can be searched for as a query.

        Raises:
            QueryError: no live row has the id.
            DataError: the unit with its vector is missing or damaged.
        """
        return self._files.vector(row_id)

    def newest_rows(self, count: int) -> np.ndarray:
        """Return the `count` highest addresses (n,) int64 of the live rows in the open parts, ascending."""
        return self._files.newest_rows(count)

    def where_id(self, row_id: str | int) -> str:
        """Return a filter that only the row with the id `row_id` passes."""
        return self._files.where_id(row_id)

    def snapshot(self) -> "OpenRelease":
        """Return the release that is open now, with the same files, as an object that is never swapped."""
        return OpenRelease(self._releases, self._files, follows=False)

    def newer(self) -> ReleaseManifest | None:
        """Return the manifest of the root's current release; None if that release is open already.

        After a rollback, the current release is older than the open one. Returns None for a release that was
        opened by number.

        Raises:
            DataError: the root has no release any more, for instance because its disk is not mounted.
        """
        manifest = self._releases.get_or_current(None) if self._follows else self.manifest
        return None if manifest.id == self.manifest.id else manifest

    def swap(self, manifest: ReleaseManifest, *, verify: bool = True) -> None:
        """Switch to another release of the root.

        If the encoder is loaded, the other release's encoder is loaded before the swap, so no query waits
        for it. After an error this release stays open.

        Raises:
            DataError: a file of the other release is missing or damaged.
        """
        self._opened = self._files.successor(manifest, verify)

    def adopt(self, other: "OpenRelease") -> None:
        """Switch to the release of the same root that `other` has open, without opening its files again."""
        self._opened = other._files

    def following(self) -> "OpenRelease":
        """Return the release that is open now as an object that `newer` compares with the current one."""
        return OpenRelease(self._releases, self._files, follows=True)

    def refresh(self, *, verify: bool = True) -> bool:
        """Swap to the current release if it has changed; return whether it has. See `newer` and `swap`."""
        if (manifest := self.newer()) is None:
            return False
        self.swap(manifest, verify=verify)
        return True
