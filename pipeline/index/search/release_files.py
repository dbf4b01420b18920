"""The files of one release, its encoder among them, opened for searching."""

import copy
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from pipeline.errors import ConfigError, DataError, QueryError, SpaceMismatch
from pipeline.index.files.ids import Ids
from pipeline.index.files.parts import linked_folder, open_parts
from pipeline.index.files.texts import Texts
from pipeline.index.files.unit_vectors import UnitVectors
from pipeline.index.filter.filtered_search import search_selected
from pipeline.index.filter.selection import Filters
from pipeline.index.measure.truth import NO_NEIGHBOUR
from pipeline.settings import EncoderSettings, EncodeSettings
from pipeline.store.files.base import Store, normal_path
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.releases.manifest import ReleaseManifest
from pipeline.store.rows.address import ordinal_of
from pipeline.store.rows.arrays import arrow_of, one_chunk, strings_of
from pipeline.text.normalize import normalize, replace_surrogates
from pipeline.where.parse import parse_where

if TYPE_CHECKING:
    from pipeline.models.inference.encoder import Encoder

SearchRows = Callable[[np.ndarray, int], tuple[np.ndarray, np.ndarray]]
"""Searches for the k nearest rows of queries (q, d). Returns scores and addresses (q, at most k)."""


class OpenOptions(NamedTuple):
    """Options with which the files of a release are opened; see `open_release`."""

    store: Store
    parts: frozenset[int] | None
    verify: bool
    device: str


class ReleaseFiles:
    """The open files of one release."""

    def __init__(
        self, manifest: ReleaseManifest, options: OpenOptions, encoder: "Encoder | None" = None
    ) -> None:
        """Open the files.

        Args:
            encoder: the release's encoder if it is loaded; None: it is loaded at its first use.
        """
        self.manifest, self._options, self._encoder = manifest, options, encoder
        local = functools.partial(local_file, options.store, verify=options.verify)
        parts = manifest.index_parts()
        chosen = _chosen_parts(manifest.release, len(parts), options.parts)
        self.ids = Ids([local(file) for number in chosen for file in parts[number].ids])
        if options.verify:
            self.ids.validate()
        self._texts = Texts(options.store, manifest.units, options.verify)
        dead = _read_addresses(local(manifest.tombstones)) if manifest.tombstones else np.zeros(0, np.int64)
        part_of_dead = np.searchsorted([part.next_ordinal for part in parts], ordinal_of(dead), side="right")
        self._parts = open_parts(
            [file for number in chosen for file in parts[number].files],
            local,
            dead[np.isin(part_of_dead, chosen)],
            manifest.index.settings.get("effort"),
        )
        self._unit_vectors = UnitVectors(options.store, manifest.units, options.verify)
        self.filters = Filters(self.ids, self._parts, self._unit_vectors)
        if options.parts is None and len(self) != manifest.rows:
            raise DataError(
                options.store.uri_of(manifest.index.files[0].path),
                f"{manifest.rows:,} live rows",
                f"{len(self):,}",
                "restore the index, or roll back",
            )

    def __len__(self) -> int:
        """Number of live rows in the open parts, and of those that pass the filter of `within`."""
        return self.filters.select(None).rows if self.filters.are_limited else self._parts.ntotal

    def within(self, where: str) -> Self:
        """Return the same files, limited to the rows that pass a filter; see `OpenRelease.within`."""
        limited = copy.copy(self)
        limited.filters = self.filters.within(where)
        return limited

    def successor(self, manifest: ReleaseManifest, verify: bool) -> "ReleaseFiles":
        """Open another release.

        A loaded encoder is shared if that release has the same one, else replaced.
        """
        is_same = (manifest.space_id, manifest.encoder) == (self.manifest.space_id, self.manifest.encoder)
        encoder = self._encoder
        if encoder is not None and not is_same:
            encoder = load_query_encoder(self._options.store, manifest, self._options.device)
        return ReleaseFiles(manifest, self._options._replace(verify=verify), encoder)

    @property
    def has_whole_ids(self) -> bool:
        """True if ids are whole numbers, not strings."""
        return bool(pa.types.is_integer(self.ids.schema.field("id").type))

    def where_id(self, row_id: str | int) -> str:
        """Return the filter that the row with an id passes."""
        return f"id = {row_id}" if self.has_whole_ids else "id = '" + str(row_id).replace("'", "''") + "'"

    def address(self, row_id: str | int) -> np.ndarray:
        """Return the address of the live row with an id, (1,) int64. Raises QueryError if there is none."""
        where = f"release {self.manifest.release}"
        if self.has_whole_ids and not str(row_id).removeprefix("-").isdecimal():
            raise QueryError(where, "an id that is a whole number", repr(row_id), "check the id")
        matching = self.ids.matching(parse_where(self.where_id(row_id), self.ids.schema))
        addresses = np.setdiff1d(np.concatenate(list(matching)), self._parts.tombstones)
        live = addresses[self._parts.holds(addresses)]
        # the same error for a row that does not exist and one outside of `within`
        if not len(live := live[self.filters.allowed(live)]):
            raise QueryError(where, f"a row with id {row_id!r}", "none", "check the id")
        return live[:1]

    def vector(self, row_id: str | int) -> np.ndarray:
        """Return the raw vector (d,) float32 of a live row; see `OpenRelease.vector`."""
        address = self.address(row_id)
        if self._unit_vectors.read_bytes(address) is None:
            where, remedy = f"release {self.manifest.release}", "restore the unit, or roll back"
            raise DataError(where, f"the unit with the vector of {row_id!r}", "no such unit", remedy)
        return self._unit_vectors.take(address)[0]

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Encode texts as queries, (n, d) float32, with the release's encoder, loaded at the first call."""
        for number, text in enumerate(texts):
            if not isinstance(text, str):
                raise QueryError(
                    "search: queries",
                    "texts, or a NumPy array (q, d) of vectors",
                    f"{type(text).__name__} in query {number}",
                    "convert vectors with np.asarray, and leave out missing texts",
                )
        cleaned = normalize(strings_of([replace_surrogates(text) for text in texts])).to_pylist()
        if not all(cleaned):
            found = "an empty query" if len(cleaned) == 1 else f"an empty text in query {cleaned.index('')}"
            raise ConfigError("search: query", "some text", found, "check the variable that holds it")
        if self._encoder is None:
            self._encoder = load_query_encoder(self._options.store, self.manifest, self._options.device)
        vectors, failures = self._encoder.encode_each(cleaned, query=True)
        for number, reason in failures.items():
            raise QueryError(
                f"search: query {number}",
                "a text that the release's encoder can encode",
                f"{cleaned[number][:80]!r} ({reason})",
                "leave it out, or use other words",
            )
        return vectors

    def search(
        self,
        vectors: np.ndarray,
        k: int,
        *,
        texts: bool = False,
        where: str | None = None,
        group: bool = False,
    ) -> pa.Table:
        """Search for the k nearest rows, or documents; see `OpenRelease.search`."""
        vectors = self._valid_vectors(vectors)
        if group:
            scores, addresses = self._nearest_documents(vectors, k, where)
        else:
            scores, addresses = self._nearest(vectors, k, where)
        query, rank = np.nonzero(addresses != NO_NEIGHBOUR)
        rows = self.rows(addresses[query, rank], texts=texts)
        columns = {
            "query": arrow_of(query.astype(np.int32)),
            "rank": arrow_of(rank.astype(np.int32) + 1),
            "id": rows["id"],
            "score": arrow_of(scores[query, rank].astype(np.float32)),
        }
        kept_columns = {name: rows[name] for name in rows.column_names if name not in columns}
        return pa.table({**columns, **kept_columns})

    def rows(self, addresses: np.ndarray, *, texts: bool = False) -> pa.Table:
        """Return the rows of `addresses` (n,) in their order; see `OpenRelease.rows`."""
        if not self.filters.allowed(addresses).all():
            where = f"release {self.manifest.release}"
            raise QueryError(where, "addresses of rows that pass its filter", "others", "check the addresses")
        rows = self.ids.take(addresses)
        if not texts or "text" in rows.column_names:
            return rows
        return rows.add_column(1, "text", self._texts.take(addresses))

    def newest_rows(self, count: int) -> np.ndarray:
        """Return the highest addresses of live rows; see `OpenRelease.newest_rows`."""
        newest = np.zeros(0, dtype=np.int64)
        for block in self._parts.addresses():
            live = np.setdiff1d(block, self._parts.tombstones)
            live = live[self.filters.allowed(live)]
            newest = np.sort(np.concatenate([newest, live]))[-count:]
        return newest

    def _nearest(self, vectors: np.ndarray, k: int, where: str | None) -> tuple[np.ndarray, np.ndarray]:
        """Return scores and addresses (q, k) of the nearest rows, NO_NEIGHBOUR after the last answer."""
        if where is None and not self.filters.are_limited:
            return self._parts.search_until_k(vectors, k)
        return search_selected(self._parts, self.filters.select(where), vectors, k)

    def _nearest_documents(
        self, vectors: np.ndarray, k: int, where: str | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return scores and addresses (q, k) of the best chunks of the nearest documents, as `_nearest`."""
        if "chunks" not in self.manifest.counts:
            raise ConfigError(
                "search: group",
                "a release of documents that are cut into chunks (corpus.chunk)",
                f"release {self.manifest.release}, whose rows are whole texts",
                "search without it",
            )
        return search_grouped(
            lambda vectors, k: self._nearest(vectors, k, where),
            lambda addresses: one_chunk(self.ids.take(addresses)["parent"]),
            vectors,
            k,
            len(self),
        )

    def _valid_vectors(self, vectors: np.ndarray) -> np.ndarray:
        dim = self._parts.d
        if vectors.ndim != 2 or vectors.shape[1] != dim or vectors.dtype.kind not in "fiu":
            raise QueryError(
                "search",
                f"vectors of shape (q, {dim})",
                f"{vectors.shape} of {vectors.dtype}",
                "give raw vectors of the release's encoder, one row for each query",
            )
        with np.errstate(over="ignore"):
            vectors = np.ascontiguousarray(vectors, dtype=np.float32)
            squares = np.einsum("qd,qd->q", vectors, vectors)  # faiss computes the norms in float32, too
        if len(bad := np.flatnonzero(~np.isfinite(squares) | (squares == 0))):
            raise QueryError(
                "search",
                "finite vectors, none of them zero",
                f"a squared length of {squares[bad[0]]} in query {bad[0]}",
                "encode the query again",
            )
        return vectors


def _chosen_parts(release: int, count: int, requested: frozenset[int] | None) -> list[int]:
    """Return the numbers of the parts to open, ascending. Raises ConfigError for parts that do not exist."""
    if requested is None:
        return list(range(count))
    if not requested or not requested <= set(range(count)):
        raise ConfigError(
            "open_release: parts",
            f"numbers from 0 to {count - 1}, since the index of release {release} has {count} parts",
            ", ".join(map(str, sorted(requested))) or "none",
            "open other parts, or leave the argument out to open all",
        )
    return sorted(requested)


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


def load_query_encoder(store: Store, manifest: ReleaseManifest, device: str) -> "Encoder":
    """Load the encoder of a release.

    It is not compiled, because compilation delays the first query by seconds. The number of threads of the
    process does not change.

    Raises:
        DataError: a file is missing or changed, or this version does not know a setting.
        SpaceMismatch: the encoder's vectors are not of the release's space.
    """
    from pipeline.device import resolve
    from pipeline.models.folder.folder import announce_warnings, open_folder
    from pipeline.models.inference.encoder import Encoder
    from pipeline.models.layers.numerics import usual_threads

    settings = EncodeSettings(compile=False, threads=usual_threads())
    stored_folder = manifest.encoder.path
    files = []
    for file in manifest.encoder.files:
        stored = file.model_copy(update={"path": f"{stored_folder}/{normal_path(file.path)}"})
        files.append((file.path, local_file(store, stored)))
    with linked_folder(files) as folder:
        opened = _encoder_settings(manifest, folder)
        encoder = Encoder(open_folder(opened), settings, resolve(device), opened.path)
    announce_warnings(encoder.folder, store.uri_of(stored_folder))
    if encoder.space_id != manifest.space_id:
        raise SpaceMismatch(
            store.uri_of(stored_folder),
            f"space {manifest.space_id}",
            f"space {encoder.space_id}",
            "another encoder is stored in the folder of the release's encoder: restore it",
        )
    return encoder


def local_file(store: Store, reference: FileRef, verify: bool = True) -> Path:
    """Fetch a file of the release if necessary, and return its path on this machine.

    Raises:
        DataError: the file does not exist, or `verify` is True and its sha256 differs.
    """
    try:
        return store.local(reference.path, reference.sha256 if verify else None)
    except FileNotFoundError:
        raise DataError(
            store.uri_of(reference.path),
            "a file of the release",
            "no such file",
            "restore the file, or roll back to a complete release",
        ) from None


def _encoder_settings(manifest: ReleaseManifest, folder: Path) -> EncoderSettings:
    try:
        return EncoderSettings(**{**manifest.settings.get("encoder", {}), "path": str(folder)})
    except ValidationError as error:
        raise DataError(
            f"release {manifest.release}: settings.encoder",
            "settings that this version knows",
            str(error.errors()[0]["loc"]),
            "open the release with the version that wrote it",
        ) from None


def search_grouped(
    search: SearchRows, parents_of: Callable[[np.ndarray], pa.Array], vectors: np.ndarray, k: int, rows: int
) -> tuple[np.ndarray, np.ndarray]:
    """Search for the best rows of the k nearest parents of each query.

    The number of rows that are searched for is doubled until they have k parents, or there are no more rows.

    Args:
        search: searches for rows.
        parents_of: returns the parents of the rows at addresses (n,).
        vectors: (q, d) queries.
        rows: number of rows that `search` could find.

    Returns:
        Scores and addresses (q, n), n the smaller of k and `rows`, best first; NO_NEIGHBOUR where there are
        fewer parents.
    """
    k = min(k, rows)
    scores = np.full((len(vectors), k), -np.inf, dtype=np.float32)
    addresses = np.full((len(vectors), k), NO_NEIGHBOUR, dtype=np.int64)
    pending, wanted = np.arange(len(vectors)), k
    while len(pending):
        wanted = min(2 * wanted, rows)
        row_scores, row_addresses = search(vectors[pending], wanted)
        incomplete = []
        for query, of_rows, found in zip(pending.tolist(), row_scores, row_addresses, strict=True):
            valid = found != NO_NEIGHBOUR
            best = _first_of_each(parents_of(found[valid]))[:k]
            scores[query, : len(best)] = of_rows[valid][best]
            addresses[query, : len(best)] = found[valid][best]
            if len(best) < k and np.count_nonzero(valid) == wanted < rows:
                incomplete.append(query)
        pending = np.array(incomplete, dtype=np.int64)
    return scores, addresses


def _first_of_each(parents: pa.Array) -> np.ndarray:
    """Return the indices of the first row of each parent, ascending."""
    codes = parents.dictionary_encode().indices.to_numpy()
    return np.sort(np.unique(codes, return_index=True)[1])
