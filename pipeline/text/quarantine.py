"""Rows that are set aside: each with its reason, in a Parquet file that people read."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.store.schema import QUARANTINE, writer_options

_EXCERPT = 200                  # characters of a text that are shown
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
    rows = [(file, one.row, one.id, one.reason, one.detail or None, one.text) for one in sorted(rejected, key=lambda one: one.row)]
    columns = zip(*rows, strict=True) if rows else ((),) * len(QUARANTINE)
    return _shortened([pa.array(column, kind) for column, kind in zip(columns, QUARANTINE.types, strict=True)])


def _shortened(columns: list[pa.Array | pa.ChunkedArray]) -> pa.Table:
    *others, texts = columns
    return pa.table([*others, pc.utf8_slice_codeunits(texts, 0, _EXCERPT).cast(pa.string())], schema=QUARANTINE)


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
