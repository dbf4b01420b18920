"""Write and list quarantined rows: rows that cannot be encoded, each with its reason, in a Parquet file."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.errors import DataError
from pipeline.store.base import Store, in_threads
from pipeline.store.dead import DeadRows
from pipeline.store.manifest import ReleaseManifest
from pipeline.store.schema import QUARANTINE, writer_options
from pipeline.store.stored import FileRef
from pipeline.store.units import Corpus
from pipeline.text.corpus.normalize import replace_surrogates

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
        reason: reason to show rows of; None shows rows of every reason.
        limit: number of rows shown for each reason.

    Raises:
        DataError: a file is missing or has changed.
    """
    counts: Counter[str] = Counter()
    shown = defaultdict[str, list[dict[str, Any]]](list)
    files: dict[str, None] = {}
    try:
        for file, rows in _all_rows(store, manifest):
            files[file] = None
            for name in rows["reason"].unique().to_pylist():
                of_reason = rows.filter(pc.equal(rows["reason"], name))
                counts[name] += of_reason.num_rows
                shown[name] += of_reason.slice(0, max(0, limit - len(shown[name]))).to_pylist()
    except FileNotFoundError as error:
        raise DataError(
            str(error.filename or error),
            "a file of the release",
            "no such file",
            "restore it, or run manta nightly, which writes it again",
        ) from None
    by_count = {name: counts[name] for name in sorted(counts, key=lambda name: (-counts[name], name))}
    rows = [row for name in by_count if reason in (None, name) for row in shown[name]]
    return QuarantineListing(by_count, rows, tuple(files))


def _all_rows(store: Store, manifest: ReleaseManifest) -> Iterator[tuple[str, pa.Table]]:
    """Yield (URI of a file, some of its rows); rows whose text is no longer in the corpus are left out."""
    corpus = Corpus.read(store, manifest.corpus)
    if corpus.quarantine is not None:
        yield from ((store.uri_of(corpus.quarantine.path), rows) for rows in corpus_rows(store, corpus))
    yield from unit_rows(store, manifest)


def corpus_rows(store: Store, corpus: Corpus) -> Iterator[pa.Table]:
    """Yield the rows that were quarantined before encoding, in tables of bounded length."""
    if corpus.quarantine is not None:
        reader = pq.ParquetFile(corpus.quarantine.open(store))
        yield from (pa.Table.from_batches([batch]) for batch in reader.iter_batches(_GROUP_ROWS))


def unit_rows(store: Store, manifest: ReleaseManifest) -> Iterator[tuple[str, pa.Table]]:
    """Yield (URI of a file, rows of it) by unit: live texts whose vector could not be computed.

    Files without a live row are not opened.
    """
    dead = DeadRows(store, manifest.dead)
    # The rows of a file are in the order of the unit's `dropped`.
    masks = (
        (unit.quarantine, ~np.isin(unit.dropped, dead.rows_of(unit.ordinal)))
        for unit in manifest.units
        if unit.quarantine is not None
    )
    files = [(file, live) for file, live in masks if live.any()]

    def read(file_and_live: tuple[FileRef, np.ndarray]) -> tuple[str, pa.Table]:
        file, live = file_and_live
        return store.uri_of(file.path), pq.read_table(file.open(store)).filter(pa.array(live))

    for start in range(0, len(files), _READERS):
        yield from in_threads(read, files[start : start + _READERS], _READERS)
