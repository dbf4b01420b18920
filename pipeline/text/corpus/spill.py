"""Partition rows into buckets by hash, in bounded memory: sorted runs are written to disk."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

_RUN_ROWS = 1 << 19  # rows sorted in memory before they are written to disk


@dataclass
class Spill:
    """Rows that are partitioned by hash on disk.

    Rows are buffered, sorted by hash and written as runs; a bucket is a slice of each run. With 2^b buckets,
    the upper b bits of a row's hash are the number of its bucket.

    Attributes:
        scratch: directory of the files.
        name: prefix of the files' names.
        rows: number of rows added so far.
    """

    scratch: Path
    name: str
    rows: int = 0
    _buffer: list[tuple[pa.Table, np.ndarray]] = field(default_factory=list)
    _buffered_rows: int = 0
    _runs: list[Path] = field(default_factory=list)

    def add(self, table: pa.Table, hashes: np.ndarray) -> None:
        """Add rows with their hashes, (n,) uint64."""
        if table.num_rows:
            self._buffer.append((table, hashes))
            self.rows, self._buffered_rows = self.rows + table.num_rows, self._buffered_rows + table.num_rows
        if self._buffered_rows >= _RUN_ROWS:
            self._flush()

    def buckets(self, count: int) -> Iterator[pa.Table | None]:
        """Yield the rows of each of `count` buckets (a power of two), in no particular order.

        Yields None for every bucket if no row was added, since there is no schema then.
        """
        self._flush()
        edges = np.arange(1, count, dtype=np.uint64) << np.uint64(65 - count.bit_length())
        runs = (np.load(path.with_suffix(".npy"), mmap_mode="r") for path in self._runs)
        cuts = [[0, *np.searchsorted(hashes, edges).tolist(), len(hashes)] for hashes in runs]
        for bucket in range(count):
            slices = [
                map_arrow(path).slice(cut[bucket], cut[bucket + 1] - cut[bucket])
                for path, cut in zip(self._runs, cuts, strict=True)
            ]
            yield pa.concat_tables(slices) if slices else None

    def _flush(self) -> None:
        if not self._buffered_rows:
            return
        table = pa.concat_tables([table for table, _ in self._buffer]).combine_chunks()
        hashes = np.concatenate([hashes for _, hashes in self._buffer])
        self._buffer, self._buffered_rows = [], 0
        order = np.argsort(hashes, kind="stable")
        path = self.scratch / f"{self.name}-{len(self._runs)}.arrow"
        np.save(path.with_suffix(".npy"), hashes[order])
        self._runs.append(write_arrow(table.take(pa.array(order)), path))


def write_arrow(table: pa.Table, path: Path) -> Path:
    """Write a table to an Arrow file and return the file's path."""
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return path


def map_arrow(path: Path) -> pa.Table:
    """Map an Arrow file as a table: its pages are released together with the table."""
    return pa.ipc.open_file(pa.memory_map(str(path))).read_all()
