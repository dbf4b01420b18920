"""Collect rows that are read, and store them in parts of bounded size."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa

from pipeline.store.base import Store
from pipeline.text.corpus.lines import ReadPart, ReadRows, store_part

_PART_BYTES = 64 << 20  # of rows in memory before they are stored as a part
_SMALL_TABLES = 1_024  # tables that are joined, because a table of a few rows takes several kilobytes


@dataclass
class PartWriter:
    """Collects rows and stores them in parts of bounded size."""

    work: Store
    partitions: int
    stem: str
    """beginning of the paths of all parts"""
    parts: list[ReadPart] = field(default_factory=list)
    _joined: list[ReadRows] = field(default_factory=list)
    _pending: list[ReadRows] = field(default_factory=list)
    _bytes: int = 0

    def add(self, rows: ReadRows) -> None:
        """Append rows, which follow the earlier ones in the order of (file, row)."""
        self._pending.append(rows)
        self._bytes += rows.lines.nbytes + rows.contents.nbytes
        if self._bytes >= _PART_BYTES:
            self._flush()
        elif len(self._pending) == _SMALL_TABLES:
            self._joined.append(_join(self._pending))
            self._pending = []

    def close(self) -> tuple[ReadPart, ...]:
        """Store the last rows and return all parts."""
        if any(rows.lines.num_rows for rows in (*self._joined, *self._pending)):
            self._flush()
        return tuple(self.parts)

    def _flush(self) -> None:
        rows = _join([*self._joined, *self._pending])
        self._joined, self._pending, self._bytes = [], [], 0
        stem = f"{self.stem}-{len(self.parts):04d}"
        self.parts.append(store_part(self.work, rows, self.partitions, stem))


def _join(rows: Iterable[ReadRows]) -> ReadRows:
    """Return the same rows in one chunk."""
    return ReadRows(*(pa.concat_tables(tables).combine_chunks() for tables in zip(*rows, strict=True)))
