"""Write and list quarantined rows: rows that cannot be encoded, each with its reason, in a Parquet file."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.errors import DataError
from pipeline.store.files.base import Store, in_threads
from pipeline.store.records.dead import DeadRows
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.records.units import Corpus
from pipeline.store.releases.manifest import ReleaseManifest
from pipeline.store.rows.address import to_addresses
from pipeline.store.rows.schema import QUARANTINE, writer_options
from pipeline.text.key_tables.buckets import read_key_bucket
from pipeline.text.key_tables.keys import id_hashes
from pipeline.text.key_tables.line_numbers import chunk_lines, rows_of_lines
from pipeline.text.normalize import replace_surrogates

_EXCERPT = 200  # characters of a text that are stored
_GROUP_ROWS = 8_192  # rows of a Parquet row group
_READERS = 16  # files of units read concurrently


@dataclass(frozen=True)
class RejectedRow:
    """One quarantined input row."""

    row: int
    """number of the row in its file; -1 for the whole file"""
    reason: str
    detail: str = ""
    id: str | None = None
    text: str | None = None


def quarantine(file: str, rejected: Iterable[RejectedRow]) -> pa.Table:
    """Return the rejected rows of a file as a quarantine table, sorted by row number."""
    rows = [
        {
            "file": file,
            "row": rejected_row.row,
            "id": rejected_row.id and replace_surrogates(rejected_row.id),
            "reason": rejected_row.reason,
            "detail": rejected_row.detail or None,
            "excerpt": rejected_row.text and replace_surrogates(rejected_row.text[:_EXCERPT]),
        }
        for rejected_row in sorted(rejected, key=lambda rejected_row: rejected_row.row)
    ]
    return pa.Table.from_pylist(rows, QUARANTINE)


class QuarantineFile:
    """Writer of quarantined rows to a local Parquet file.

    All row groups but the last have the same length, so that equal rows give equal bytes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writer = pq.ParquetWriter(path, QUARANTINE, **writer_options(QUARANTINE))
        self._pending: list[pa.Table] = []
        self._pending_rows = 0
        self._reasons: Counter[str] = Counter()

    def add(self, rows: pa.Table) -> None:
        """Append the rows of a quarantine table."""
        if not rows.num_rows:
            return
        self._reasons.update(rows["reason"].to_pylist())
        self._pending.append(rows)
        self._pending_rows += rows.num_rows
        if self._pending_rows >= _GROUP_ROWS:
            pending = pa.concat_tables(self._pending)
            full_group_rows = len(pending) // _GROUP_ROWS * _GROUP_ROWS
            full_groups = pending.slice(0, full_group_rows).combine_chunks()
            self._writer.write_table(full_groups, row_group_size=_GROUP_ROWS)
            self._pending = [pending.slice(full_group_rows)]
            self._pending_rows -= full_group_rows

    def close(self) -> dict[str, int]:
        """Finish the file and return the number of rows by reason."""
        if any(map(len, self._pending)):
            self._writer.write_table(pa.concat_tables(self._pending).combine_chunks())
        self._writer.close()
        return dict(sorted(self._reasons.items()))


class QuarantineListing(NamedTuple):
    """Rows that a release leaves out."""

    counts: dict[str, int]
    """number of rows by reason, the most frequent reason first"""
    rows: list[dict[str, Any]]
    """the rows to show"""
    files: tuple[str, ...]
    """URIs of the files that hold all rows"""


def list_quarantined(
    store: Store, manifest: ReleaseManifest, reason: str | None, limit: int
) -> QuarantineListing:
    """List the rows that a release leaves out: rejected input rows, and live texts without a vector.

    Args:
        store: the release's store.
        manifest: the release's manifest.
        reason: show only rows with this reason; None shows rows with any reason.
        limit: number of rows shown for each reason.

    Raises:
        DataError: a file is missing or has changed.
    """
    counts: Counter[str] = Counter()
    shown = defaultdict[str, list[dict[str, Any]]](list)
    files: dict[str, None] = {}
    try:
        corpus = Corpus.read(store, manifest.corpus)
        for file, rows in _all_rows(store, manifest, corpus):
            files[file] = None
            for name in rows["reason"].unique().to_pylist():
                of_reason = rows.filter(pc.equal(rows["reason"], name))
                counts[name] += of_reason.num_rows
                shown[name] += of_reason.slice(0, max(0, limit - len(shown[name]))).to_pylist()
        by_count = {name: counts[name] for name in sorted(counts, key=lambda name: (-counts[name], name))}
        listed = [row for name in by_count if reason in (None, name) for row in shown[name]]
        return QuarantineListing(by_count, with_places(store, corpus, listed), tuple(files))
    except FileNotFoundError as error:
        raise DataError(
            str(error.filename or error),
            "a file of the release",
            "no such file",
            "restore it, or run manta nightly, which writes it again",
        ) from None


def _all_rows(store: Store, manifest: ReleaseManifest, corpus: Corpus) -> Iterator[tuple[str, pa.Table]]:
    """Yield (URI of a file, some of its rows); rows whose text is no longer in the corpus are left out."""
    if corpus.quarantine is not None:
        yield from ((store.uri_of(corpus.quarantine.path), rows) for rows in corpus_rows(store, corpus))
    yield from unit_rows(store, manifest)


def corpus_rows(store: Store, corpus: Corpus) -> Iterator[pa.Table]:
    """Yield the rows that were quarantined before encoding, in tables of bounded length."""
    if corpus.quarantine is not None:
        reader = pq.ParquetFile(corpus.quarantine.open(store))
        yield from (pa.Table.from_batches([batch]) for batch in reader.iter_batches(_GROUP_ROWS))


def unit_rows(store: Store, manifest: ReleaseManifest) -> Iterator[tuple[str, pa.Table]]:
    """Yield (URI of a unit's file, rows of it): live texts whose vector could not be computed.

    The rows have the columns of the file, and `address`, which `with_places` needs. Files without a live row
    are not opened.
    """
    dead = DeadRows(store, manifest.dead)
    # The rows of a file are in the order of the unit's `dropped`.
    units = (
        (unit.quarantine, to_addresses(unit.ordinal, np.array(unit.dropped)))
        for unit in manifest.units
        if unit.quarantine is not None
    )
    masks = ((file, addresses, ~dead.contains(addresses)) for file, addresses in units)
    files = [each for each in masks if each[2].any()]

    def read(each: tuple[FileRef, np.ndarray, np.ndarray]) -> tuple[str, pa.Table]:
        file, addresses, live = each
        rows = pq.read_table(file.open(store)).append_column("address", pa.array(addresses))
        return store.uri_of(file.path), rows.filter(pa.array(live))

    for start in range(0, len(files), _READERS):
        yield from in_threads(read, files[start : start + _READERS], _READERS)


def with_places(store: Store, corpus: Corpus, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return quarantined rows with their present file and row number in the corpus.

    A unit's quarantine file is not written again when an input file is renamed or its rows move.

    Args:
        store: the corpus's store.
        corpus: the corpus.
        rows: rows as `corpus_rows` and `unit_rows` yield them.

    Raises:
        FileNotFoundError: the corpus's key table is missing.
    """
    places = _places(store, corpus, [row for row in rows if "address" in row])
    return [
        {name: row[name] for name in QUARANTINE.names} | places.get(row.get("address", -1), {})
        for row in rows
    ]


def _places(store: Store, corpus: Corpus, rows: Sequence[dict[str, Any]]) -> dict[int, dict[str, str | int]]:
    """Read the file and row number of live rows, by address, from the key table's buckets with these rows."""
    parts, places = len(corpus.keys), dict[int, dict[str, str | int]]()
    if not rows or not parts:
        return places
    numbers = np.zeros(len(rows), dtype=np.int64)
    lines = chunk_lines(numbers, numbers) if corpus.is_chunked else numbers
    hashes = id_hashes(pa.table({"id": [row["id"] for row in rows], "row": lines}))
    buckets = hashes >> np.uint64(65 - parts.bit_length()) if parts > 1 else numbers
    addresses = pa.array([row["address"] for row in rows])
    for bucket in np.unique(buckets).tolist():
        found = read_key_bucket(store, corpus.keys, bucket, parts, ("id", "address", "file", "row"))
        assert found is not None, "the table has buckets"
        found = found.filter(pc.is_in(found["address"], value_set=addresses))
        files, of_file = found["file"].to_pylist(), rows_of_lines(found["row"].to_numpy()).tolist()
        for address, file, row in zip(found["address"].to_pylist(), files, of_file, strict=True):
            places[address] = {"file": file, "row": row}
    return places
