"""Collect rows that are read, and store them in parts of bounded size."""

from dataclasses import dataclass, field

import pyarrow as pa

from pipeline.store.files.base import Store
from pipeline.store.files.local import ScratchStore
from pipeline.store.rows.arrays import join_tables
from pipeline.text.ingest.read_rows import ReadPart, ReadRows
from pipeline.text.key_tables.keys import id_hashes
from pipeline.text.key_tables.partitions import partition_of, store_partitions

_PART_BYTES = 64 << 20  # rows are stored as a part when they take this much memory
# The same limit if temporary files are on this machine, where reading from more parts costs no requests.
_SCRATCH_PART_BYTES = 16 << 20
# tables are joined beyond this number, because a table of a few rows takes several kilobytes
_SMALL_TABLES = 1_024


@dataclass
class PartWriter:
    """Collects rows and stores them in parts of bounded size, in partitions by the hash of their id."""

    work: Store
    partitions: int
    stem: str
    """beginning of the paths of all parts"""
    parts: list[ReadPart] = field(default_factory=list)
    _lines: "_Tables" = field(default_factory=lambda: _Tables())
    _contents: "_Tables" = field(default_factory=lambda: _Tables())

    def add(self, rows: ReadRows) -> None:
        """Append rows, which follow the earlier ones in the order of (file, row)."""
        self._lines.add(rows.lines)
        self._contents.add(rows.contents)
        is_scratch = isinstance(self.work, ScratchStore)
        limit = min(_SCRATCH_PART_BYTES, _PART_BYTES) if is_scratch else _PART_BYTES
        if self._lines.bytes + self._contents.bytes >= limit:
            self._flush()

    def close(self) -> tuple[ReadPart, ...]:
        """Store the last rows and return all parts."""
        if self._lines.rows:
            self._flush()
        return tuple(self.parts)

    def _flush(self) -> None:
        """Store a part. Each table is freed before the next one is copied."""
        stem, count = f"{self.stem}-{len(self.parts):04d}", self.partitions
        lines = self._lines.take()
        partitions = partition_of(id_hashes(lines), count)
        stored_lines = store_partitions(self.work, lines, partitions, count, f"{stem}-lines.arrow")
        del lines
        contents = self._contents.take()
        stored = store_partitions(self.work, contents, partitions, count, f"{stem}-contents.arrow")
        del contents
        pa.default_memory_pool().release_unused()
        self.parts.append(ReadPart(lines=stored_lines, contents=stored))


@dataclass
class _Tables:
    """Tables of one schema, in order."""

    rows: int = 0
    bytes: int = 0
    _joined: list[pa.Table] = field(default_factory=list)
    _pending: list[pa.Table] = field(default_factory=list)

    def add(self, table: pa.Table) -> None:
        """Append a table."""
        self._pending.append(table)
        self.rows, self.bytes = self.rows + table.num_rows, self.bytes + table.nbytes
        if len(self._pending) == _SMALL_TABLES:
            self._joined.append(join_tables(self._pending))

    def take(self) -> pa.Table:
        """Return all tables in one chunk, and forget them."""
        tables, self._joined, self._pending = [*self._joined, *self._pending], [], []
        self.rows = self.bytes = 0
        return join_tables(tables)
