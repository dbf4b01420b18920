"""A published release, opened for searching.

Its files are checked and mapped, queries are encoded with its own encoder, and it can be swapped for a newer
release while it is in use.
"""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import ConfigError, DataError, SpaceMismatch
from pipeline.index.ids import Ids
from pipeline.index.parts import open_parts
from pipeline.index.query_encoder import load_query_encoder, local_file
from pipeline.index.texts import Texts
from pipeline.index.truth import NO_NEIGHBOUR
from pipeline.store.arrays import arrow_of, strings_of
from pipeline.store.base import Store
from pipeline.store.manifest import ReleaseManifest
from pipeline.store.release import Releases
from pipeline.store.store import open_store
from pipeline.text.corpus.normalize import normalize, replace_surrogates

if TYPE_CHECKING:
    from pipeline.models.inference.encoder import Encoder


def open_release(
    uri: str | Path,
    number: int | None = None,
    *,
    verify: bool = True,
    device: str = "cpu",
    commits: str | Path | None = None,
) -> "OpenRelease":
    """Open the current release below the root `uri`, or release `number`, for searching.

    Args:
        verify: compare every file with its sha256 first, which reads each once. Remote files are always
            checked when they are fetched.
        device: where queries are encoded.
        commits: root of the commits, if it is another store.

    Raises:
        DataError: there is no release, or a file was changed.
    """
    return open_chosen(
        Releases(open_store(uri), open_store(commits) if commits is not None else None),
        number,
        verify=verify,
        device=device,
    )


def open_chosen(
    releases: Releases, number: int | None, *, verify: bool = True, device: str = "cpu"
) -> "OpenRelease":
    """Open a release below a root that is open already; see `open_release`."""
    return OpenRelease(
        releases, _Opened(releases.store, releases.chosen(number), verify, device), follows=number is None
    )


class OpenRelease:
    """A release that can be searched; `open_release` returns it.

    Threads may share it: a swap replaces the whole release at once, and a running search keeps the release
    that it began with.
    """

    def __init__(self, releases: Releases, opened: "_Opened", follows: bool) -> None:
        self._releases, self._opened, self._follows = releases, opened, follows

    def __repr__(self) -> str:
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
    def manifest(self) -> ReleaseManifest:
        """The release's manifest."""
        return self._opened.manifest

    def __len__(self) -> int:
        """Number of live rows."""
        return self.manifest.rows

    def validate(self) -> None:
        """Read every row of the ids, as opening with `verify` does.

        Raises:
            DataError: a file could not be searched safely.
        """
        self._opened.ids.validate()

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Encode texts as queries, (n, d) float32, with the release's own encoder, loaded at the first call.

        Raises:
            SpaceMismatch: it is not the encoder of the rows.
        """
        return self._opened.encode(texts)

    def search(
        self,
        queries: str | Sequence[str] | np.ndarray,
        k: int = 10,
        *,
        space_id: str | None = None,
        texts: bool = False,
    ) -> pa.Table:
        """Search for the k nearest rows of each query.

        If the lists that a query visits hold fewer than k live rows, it visits more of them (nprobe is
        doubled). So a query has fewer than k answers only if the release has fewer rows, or if an index
        without exact lists (HNSW, PQ fast-scan) finds no more.

        Args:
            queries: texts, or raw vectors (q, d) of the release's encoder.
            space_id: space of the vectors; if it is given, vectors of another space are refused.
            texts: add a column text with the encoded texts, read from the corpus units. If corpus.keep names
                text, the kept column is used.

        Returns:
            Columns query (int32, from 0), rank (int32, from 1), id, score (float32, cosine), and the kept
            columns; the best answer of each query first.

        Raises:
            DataError: vectors have another dimension, NaN or infinity, or are zero; also MissingTexts for
                a missing corpus unit.
        """
        if k < 1:
            raise ConfigError("search: k", "at least 1", str(k), "ask for one answer or more")
        opened = self._opened
        if space_id is not None and space_id != (own := opened.manifest.space_id):
            raise SpaceMismatch(
                "search",
                f"vectors of space {own}",
                f"space {space_id}",
                "encode the queries with the release's encoder",
            )
        if isinstance(queries, np.ndarray):
            return opened.search(queries, k, texts)
        asked = [queries] if isinstance(queries, str) else queries
        vectors = opened.encode(asked)
        if len(unknown := np.flatnonzero(~vectors.any(axis=1))):
            expected = "a word that the release's encoder knows"  # word vectors know only those of their file
            raise DataError("search: query", expected, repr(asked[unknown[0]][:80]), "use other words")
        return opened.search(vectors, k, texts)

    def refresh(self, *, verify: bool = True) -> bool:
        """Swap to the release that is current now; return whether it is another one.

        A release that was opened by number stays.
        """
        if not self._follows:
            return False
        manifest = self._releases.current()
        if manifest is None or manifest.id == self.manifest.id:
            return False
        self._opened = self._opened.successor(manifest, verify)
        return True


class _Opened:
    """The open files of one release."""

    def __init__(self, store: Store, manifest: ReleaseManifest, verify: bool, device: str) -> None:
        self.manifest, self._store, self._device = manifest, store, device
        local = functools.partial(local_file, store, verify=verify)
        self.ids = Ids([local(reference) for reference in manifest.ids])
        if verify:
            self.ids.validate()
        self._texts = Texts(store, manifest.units, verify)
        self._parts = open_parts(
            manifest.index.files,
            local,
            _read_addresses(local(manifest.tombstones)) if manifest.tombstones else None,
        )
        if self._parts.ntotal != manifest.rows:
            raise DataError(
                store.uri_of(manifest.index.files[0].path),
                f"{manifest.rows:,} live rows",
                f"{self._parts.ntotal:,}",
                "restore the index, or roll back",
            )

    def successor(self, manifest: ReleaseManifest, verify: bool) -> "_Opened":
        """Open another release; it shares the encoder if that is the same and loaded."""
        opened, own = _Opened(self._store, manifest, verify, self._device), self.manifest
        same = (manifest.space_id, manifest.encoder) == (own.space_id, own.encoder)
        if same and "encoder" in self.__dict__:
            opened.__dict__["encoder"] = self.encoder
        return opened

    @functools.cached_property
    def encoder(self) -> "Encoder":
        """Load the release's encoder at the first use."""
        return load_query_encoder(self._store, self.manifest, self._device)

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Encode texts as queries, (n, d) float32."""
        cleaned = normalize(strings_of([replace_surrogates(text) for text in texts])).to_pylist()
        if not all(cleaned):
            raise ConfigError(
                "search: query", "some text", "an empty query", "check the variable that holds it"
            )
        return self.encoder.encode(cleaned, query=True)

    def search(self, vectors: np.ndarray, k: int, texts: bool) -> pa.Table:
        """Search for the k nearest rows; see `OpenRelease.search`."""
        scores, addresses = self._parts.search_further(self._checked(vectors), k)
        query, rank = np.nonzero(addresses != NO_NEIGHBOUR)
        rows = self.ids.take(addresses[query, rank])
        columns = {
            "query": arrow_of(query.astype(np.int32)),
            "rank": arrow_of(rank.astype(np.int32) + 1),
            "id": rows["id"],
            "score": arrow_of(scores[query, rank].astype(np.float32)),
        }
        kept = {name: rows[name] for name in rows.column_names if name not in columns}
        if texts and "text" not in kept:
            columns["text"] = self._texts.take(addresses[query, rank])
        return pa.table({**columns, **kept})

    def _checked(self, vectors: np.ndarray) -> np.ndarray:
        dim = self._parts.d
        if vectors.ndim != 2 or vectors.shape[1] != dim:
            raise DataError(
                "search",
                f"vectors of shape (q, {dim})",
                f"{vectors.shape}",
                "give raw vectors of the release's encoder, one row a query",
            )
        vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        if len(bad := np.flatnonzero(~(np.isfinite(vectors).all(axis=1) & vectors.any(axis=1)))):
            raise DataError(
                "search",
                "finite vectors, none of them zero",
                f"query {bad[0]} is not so",
                "encode the query again",
            )
        return vectors


def _read_addresses(file: Path) -> np.ndarray:
    try:
        return np.asarray(pq.read_table(file, columns=["address"])["address"].to_numpy())
    except (pa.ArrowInvalid, KeyError, OSError) as error:
        raise DataError(
            str(file),
            "a Parquet file with a column address",
            " ".join(str(error).split()),
            "restore it, or roll back",
        ) from None
