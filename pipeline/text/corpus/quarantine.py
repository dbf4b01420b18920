"""Rows that are set aside: each with its reason, in a Parquet file that people read."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.errors import DataError
from pipeline.store.base import Store
from pipeline.store.dead import Dead
from pipeline.store.manifest import ReleaseManifest
from pipeline.store.schema import QUARANTINE, writer_options
from pipeline.store.units import Corpus

_EXCERPT = 200  # characters of a text that are shown
_GROUP_ROWS = 8_192


@dataclass(frozen=True)
class Rejected:
    """One input row that is set aside. row: its number in the file, -1 for the file as a whole."""

    row: int
    reason: str
    detail: str = ""
    id: str | None = None
    text: str | None = None


def quarantine(file: str, rejected: Iterable[Rejected]) -> pa.Table:
    """The rows as a quarantine table, by row number."""
    rows = [
        (file, one.row, one.id, one.reason, one.detail or None, one.text)
        for one in sorted(rejected, key=lambda one: one.row)
    ]
    columns = zip(*rows, strict=True) if rows else ((),) * len(QUARANTINE)
    return _shortened(
        [pa.array(column, kind) for column, kind in zip(columns, QUARANTINE.types, strict=True)]
    )


def _shortened(columns: list[pa.Array | pa.ChunkedArray]) -> pa.Table:
    *others, texts = columns
    return pa.table(
        [*others, pc.utf8_slice_codeunits(texts, 0, _EXCERPT).cast(pa.string())], schema=QUARANTINE
    )


class QuarantineFile:
    """Rows go into a scratch file, in row groups of fixed length, so that equal rows give equal bytes."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._writer: pq.ParquetWriter | None = None
        self._waiting: list[pa.Table] = []
        self._reasons: dict[str, int] = {}

    def add(self, rows: pa.Table) -> None:
        """The next rows, a quarantine table."""
        if not rows.num_rows:
            return
        for reason in rows["reason"].value_counts().to_pylist():
            self._reasons[reason["values"]] = self._reasons.get(reason["values"], 0) + reason["counts"]
        self._waiting.append(rows)
        if sum(len(table) for table in self._waiting) >= _GROUP_ROWS:
            held = pa.concat_tables(self._waiting)
            whole = len(held) // _GROUP_ROWS * _GROUP_ROWS
            self._write(held.slice(0, whole))
            self._waiting = [held.slice(whole)]

    def close(self) -> dict[str, int]:
        """Ends the file, and tells rows by reason; without any there is no file."""
        if any(len(table) for table in self._waiting):
            self._write(pa.concat_tables(self._waiting))
        if self._writer:
            self._writer.close()
        return dict(sorted(self._reasons.items()))

    def _write(self, rows: pa.Table) -> None:
        if self._writer is None:
            self._writer = pq.ParquetWriter(self.place, QUARANTINE, **writer_options(QUARANTINE))
        self._writer.write_table(rows.combine_chunks(), row_group_size=_GROUP_ROWS)


def listed(
    store: Store, manifest: ReleaseManifest, reason: str | None, limit: int
) -> tuple[dict[str, int], list[dict[str, Any]], tuple[str, ...]]:
    """Rows that a release leaves out: (how many by reason, the first `limit` of each, files that list all).

    reason: show only rows set aside for it. Rows of the corpus come first, then live texts without a usable vector.
    DataError for a file that is missing or was changed.
    """
    counts: Counter[str] = Counter()
    shown: dict[str, list[dict[str, Any]]] = {}
    files: list[str] = []
    try:
        for file, rows in _set_aside(store, manifest):
            files += [file] if file not in files else []
            for name in rows["reason"].unique().to_pylist():
                of_reason = rows.filter(pc.equal(rows["reason"], name))
                counts[name] += of_reason.num_rows
                held = shown.setdefault(name, [])
                held += of_reason.slice(0, max(0, limit - len(held))).to_pylist()
    except FileNotFoundError as error:
        remedy = "restore it, or run manta nightly, which makes it again"
        raise DataError(
            str(error.filename or error), "a file of the release", "no such file", remedy
        ) from None
    most_first = sorted(counts, key=lambda name: (-counts[name], name))
    wanted = [name for name in most_first if reason in (None, name)]
    return (
        {name: counts[name] for name in most_first},
        [row for name in wanted for row in shown[name]],
        tuple(files),
    )


def _set_aside(store: Store, manifest: ReleaseManifest) -> Iterator[tuple[str, pa.Table]]:
    """(address of a file, some of its rows); rows whose text is in the corpus no more are left out."""
    where = store.uri_of(manifest.corpus.path)
    corpus = Corpus.from_json(store.read_checked(manifest.corpus.path, manifest.corpus.sha256), where)
    if corpus.quarantine is not None:
        yield from ((store.uri_of(corpus.quarantine.path), rows) for rows in corpus_rows(store, corpus))
    yield from unit_rows(store, manifest)


def corpus_rows(store: Store, corpus: Corpus) -> Iterator[pa.Table]:
    """Rows that were set aside before any text was encoded, in tables of bounded length."""
    if corpus.quarantine is not None:
        reader = pq.ParquetFile(store.open(corpus.quarantine.path, corpus.quarantine.sha256))
        yield from (pa.Table.from_batches([batch]) for batch in reader.iter_batches(_GROUP_ROWS))


def unit_rows(store: Store, manifest: ReleaseManifest) -> Iterator[tuple[str, pa.Table]]:
    """(address of a file, its rows), by unit: live texts without a usable vector. Files without a live row are not opened."""
    dead = Dead.load(store, manifest.dead)
    for unit in manifest.units:
        live = ~np.isin(unit.dropped, dead.rows_of(unit.ordinal))
        if unit.quarantine is not None and live.any():
            table = pq.read_table(store.open(unit.quarantine.path, unit.quarantine.sha256))
            yield (
                store.uri_of(unit.quarantine.path),
                table.filter(pa.array(live)),
            )  # both in the order of the rows
