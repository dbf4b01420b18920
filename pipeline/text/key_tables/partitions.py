"""Tables stored in partitions, so that a task can read its partitions from the files of all other tasks.

A file begins with the offsets of its partitions, (n + 1,) int64. Each partition is an Arrow IPC stream; an
empty partition takes no bytes. A reader needs two ranges of the file: some offsets, and the partitions.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from pipeline.store.files.base import Store, in_threads
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.rows.arrays import empty_table

_OFFSET_BYTES = 8
_KEPT_BYTES = 256 << 20  # offsets that a reader keeps: 8,000 files of 4,096 partitions


def partition_of(hashes: np.ndarray, count: int) -> np.ndarray:
    """Return the partition of each hash, from 0 to count - 1, given by its upper bits: (n,) int64.

    Args:
        hashes: (n,) uint64.
        count: a power of two. With half the count, each partition has the rows of two adjacent ones.
    """
    if count == 1:
        return np.zeros(len(hashes), dtype=np.int64)
    return (hashes >> np.uint64(65 - count.bit_length())).astype(np.int64)


def store_partitions(store: Store, table: pa.Table, partitions: np.ndarray, count: int, path: str) -> FileRef:
    """Store the rows of a table by partition; rows of one partition keep their order.

    Args:
        partitions: (n,) partition of each row, 0 to count - 1.
        count: number of partitions.
    """
    if count > 1:
        order = np.argsort(partitions, kind="stable")
        table, partitions = table.take(pa.array(order)), partitions[order]
    bounds = np.searchsorted(partitions, np.arange(count + 1))
    with store.scratch() as scratch:
        file = scratch / "partitions"
        offsets = np.zeros(count + 1, dtype=np.int64)
        with file.open("wb") as sink:
            sink.write(offsets.tobytes())
            for number in range(count):
                offsets[number] = sink.tell()
                rows = table.slice(bounds[number], bounds[number + 1] - bounds[number])
                if rows.num_rows:
                    with pa.ipc.new_stream(sink, table.schema) as writer:
                        writer.write_table(rows.combine_chunks())
            offsets[count] = sink.tell()
            sink.seek(0)
            sink.write(offsets.tobytes())
        size = file.stat().st_size
        store.put(file, path)
    return FileRef(path=path, sha256="", rows=table.num_rows, bytes=size)


def store_whole(store: Store, table: pa.Table, path: str) -> FileRef:
    """Store a table as one partition."""
    return store_partitions(store, table, np.zeros(table.num_rows, dtype=np.int64), 1, path)


def read_offsets(store: Store, file: FileRef, first: int, stop: int) -> np.ndarray:
    """Return (stop - first + 1,) int64: where each of the partitions begins, and where the last one ends."""
    content = store.read_range(file.path, _OFFSET_BYTES * first, _OFFSET_BYTES * (stop + 1))
    return np.frombuffer(content, dtype=np.int64)


def read_partitions(store: Store, file: FileRef, first: int = 0, stop: int = 1) -> list[pa.Table]:
    """Read the partitions from `first` to `stop`; empty ones are left out."""
    return _read_between(store, file, read_offsets(store, file, first, stop)) if file.rows else []


def _read_between(store: Store, file: FileRef, offsets: np.ndarray) -> list[pa.Table]:
    """Read the partitions that begin at the offsets; the last offset is the end of the last partition."""
    if offsets[0] == offsets[-1]:
        return []
    content = store.read_range(file.path, int(offsets[0]), int(offsets[-1]))
    ends = zip(offsets[:-1] - offsets[0], offsets[1:] - offsets[0], strict=True)
    streams = (content.slice(start, end - start) for start, end in ends if end > start)
    return [pa.ipc.open_stream(stream).read_all() for stream in streams]


def read_from_all(
    store: Store, files: Sequence[FileRef], schema: pa.Schema, first: int = 0, stop: int = 1
) -> pa.Table:
    """Read the partitions from `first` to `stop` of all files, in the order of the files."""
    return _concatenate(in_threads(lambda file: read_partitions(store, file, first, stop), files), schema)


def _concatenate(tables_by_file: Sequence[Sequence[pa.Table]], schema: pa.Schema) -> pa.Table:
    tables = [table for tables_of_file in tables_by_file for table in tables_of_file]
    return pa.concat_tables(tables) if tables else empty_table(schema)


class PartitionReader:
    """Reads partitions of the same files repeatedly. The offsets of a file are read once, so each further
    read of it is one request.
    """

    def __init__(self, store: Store, count: int) -> None:
        """Begin without offsets; `count` is the number of partitions of each file."""
        self._store, self._count = store, count
        self._offsets: dict[str, np.ndarray] = {}

    def read(self, files: Sequence[FileRef], schema: pa.Schema, first: int, stop: int) -> pa.Table:
        """Read the partitions from `first` to `stop` of all files, in the order of the files."""
        return _concatenate(in_threads(lambda file: self._read_file(file, first, stop), files), schema)

    def _read_file(self, file: FileRef, first: int, stop: int) -> list[pa.Table]:
        if not file.rows:
            return []
        if (offsets := self._offsets.get(file.path)) is not None:
            return _read_between(self._store, file, offsets[first : stop + 1])
        if (len(self._offsets) + 1) * (self._count + 1) * _OFFSET_BYTES > _KEPT_BYTES:
            return read_partitions(self._store, file, first, stop)
        offsets = self._offsets[file.path] = read_offsets(self._store, file, 0, self._count)
        return _read_between(self._store, file, offsets[first : stop + 1])
