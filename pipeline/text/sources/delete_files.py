"""Read which rows a table has deleted: files of positions, and deletion vectors.

Iceberg keeps deletion vectors in Puffin files, Delta in files of its own or in its log.
"""

import contextlib
import zlib
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.errors import DataError
from pipeline.store.files.base import Store
from pipeline.store.files.open_store import store_of
from pipeline.text.sources.lake_file import DeleteFile, DeletionVector
from pipeline.text.sources.storage_errors import storage_errors

_NO_ROWS = np.zeros(0, np.int64)
_MAX_CACHED_ROWS = 1 << 20  # largest file of positions that is kept in memory, in rows: 8 MiB of numbers
_MAGIC = (1_681_511_377).to_bytes(4, "little")  # begins a deletion vector, in both formats
_VERSION = b"\1"  # begins a file of deletion vectors of Delta


def data_files_of(file: DeleteFile) -> frozenset[str]:
    """Return the locations of the data files whose rows a delete file lists."""
    with _opened(file) as stream:
        if file.is_puffin:
            return frozenset(map(_data_file_of, _blobs(stream.read())))
        batches = pq.ParquetFile(stream).iter_batches(columns=["file_path"])
        return frozenset(path for batch in batches for path in pc.unique(_paths(batch)).to_pylist())


@lru_cache(maxsize=16)
def deleted_rows(file: DeleteFile, location: str, rows: int) -> np.ndarray:
    """Return (n,) int64, ascending: the rows that a delete file lists of a data file with `rows` rows."""
    if not file.is_puffin and (by_data_file := _rows_by_data_file(file)) is not None:
        return by_data_file.get(location, _NO_ROWS)
    found = [_NO_ROWS]
    with _opened(file) as stream:
        if file.is_puffin:
            content = stream.read()
            wanted = [blob for blob in _blobs(content) if _data_file_of(blob) == location]
            stored = (content[blob.offset : blob.offset + blob.length] for blob in wanted)
            found += [_rows_of(vector, rows) for vector in stored]
        else:
            for batch in pq.ParquetFile(stream).iter_batches(columns=["file_path", "pos"]):
                found.append(np.unique(_positions(batch.filter(pc.equal(_paths(batch), location)))))
                if len(found[-1]):
                    _check_last(int(found[-1][-1]), rows)
    return np.unique(np.concatenate(found))


@lru_cache(maxsize=2)  # cached, because a data file that is divided is opened several times
def rows_of_vector(vector: DeletionVector, rows: int) -> np.ndarray:
    """Return (n,) int64, ascending: the rows that a deletion vector lists of a data file with `rows` rows."""
    with _stored(vector.uri) as (store, name):
        if vector.content is not None:
            found = _rows_of_bitmap(vector.content, rows)
        else:
            if store.read_range(name, 0, len(_VERSION)).to_pybytes() != _VERSION:
                raise ValueError("a file of deletion vectors of an unknown version")
            stop = vector.offset + 4 + vector.size + 4  # with its length and checksum
            found = _rows_of(store.read_range(name, vector.offset, stop).to_pybytes(), rows)
        if len(found) != vector.cardinality:
            raise ValueError(f"{len(found):,} rows, and the log says {vector.cardinality:,}")
    return found


@lru_cache(maxsize=4)
def _rows_by_data_file(file: DeleteFile) -> dict[str, np.ndarray] | None:
    """Return the rows that a file of positions lists, by the location of their data file, each ascending.

    Returns None if the file is too large to be kept in memory. The result is cached, because the next data
    file of this process probably has the same delete file.
    """
    with _opened(file) as stream:
        reader = pq.ParquetFile(stream, read_dictionary=["file_path"])
        if reader.metadata.num_rows > _MAX_CACHED_ROWS:
            return None
        listed = reader.read(columns=["file_path", "pos"]).unify_dictionaries()
        paths, positions = _paths(listed).combine_chunks(), _positions(listed)
        if not pa.types.is_dictionary(paths.type):
            raise ValueError("a file_path that is no string")
    codes = np.asarray(paths.indices)
    order = np.argsort(codes, kind="stable")
    positions = positions[order]
    ends = np.searchsorted(codes[order], np.arange(len(paths.dictionary)), side="right")
    groups = (np.unique(positions[start:end]) for start, end in pairwise([0, *ends]))
    return dict(zip(paths.dictionary.to_pylist(), groups, strict=True))


def _paths(listed: pa.Table | pa.RecordBatch) -> Any:
    """Return the data file of each row that a file of positions lists. Raises ValueError if one is null."""
    if listed["file_path"].null_count:
        raise ValueError("a file_path that is null")
    return listed["file_path"]


def _positions(listed: pa.Table | pa.RecordBatch) -> np.ndarray:
    """Return (n,) int64: rows that a file of positions lists. Raises ValueError if one is invalid."""
    positions = listed["pos"].cast(pa.int64())
    if positions.null_count or (len(positions) and pc.min(positions).as_py() < 0):
        raise ValueError("a position that is null or negative")
    return np.asarray(positions.to_numpy())


@contextlib.contextmanager
def _opened(file: DeleteFile) -> Iterator[pa.NativeFile]:
    with _stored(file.uri) as (store, name), store.open(name) as stream:
        yield stream


@contextlib.contextmanager
def _stored(uri: str) -> Iterator[tuple[Store, str]]:
    """Yield the store and the name of a delete file. Errors in the block become errors about this file."""
    with storage_errors(uri, ""):
        try:
            yield store_of(uri)
        except FileNotFoundError as error:
            raise DataError(
                uri,
                "a delete file of the table",
                "no such file: the table was vacuumed, or its snapshots have expired",
                "read a newer snapshot (corpus.snapshot), or restore the file",
            ) from error
        except (ValueError, LookupError) as error:
            raise DataError(
                uri,
                "a delete file of the table",
                f"a damaged one: {type(error).__name__}: {' '.join(str(error).split())}"[:400],
                "restore the file, or read another snapshot (corpus.snapshot)",
            ) from error


def _blobs(content: bytes) -> list[Any]:
    """Return the descriptions of vectors in the footer of a Puffin file; raise ValueError for
    another file.
    """
    from pyiceberg.table.puffin import PuffinFile

    return list(PuffinFile(content).footer.blobs)


def _data_file_of(blob: Any) -> str:
    return str(blob.properties["referenced-data-file"])


def _rows_of(blob: bytes, rows: int) -> np.ndarray:
    """Return the rows that a stored deletion vector lists; `blob` has its length, itself and its checksum."""
    stop = 4 + int.from_bytes(blob[:4], "big")
    if len(blob) != stop + 4 or zlib.crc32(blob[4:stop]) != int.from_bytes(blob[stop:], "big"):
        raise ValueError("a deletion vector without the checksum that it was written with")
    return _rows_of_bitmap(blob[4:stop], rows)


def _rows_of_bitmap(vector: bytes, rows: int) -> np.ndarray:
    """Return the rows that a deletion vector lists. It is a magic number and a 64-bit Roaring bitmap.

    Raises:
        ValueError, LookupError: it is damaged, or lists a row that its data file does not have.
    """
    from pyroaring import BitMap64

    if vector[:4] != _MAGIC:
        raise ValueError("no deletion vector")
    bitmap = BitMap64.deserialize(vector[4:])
    if bitmap:
        _check_last(bitmap.max(), rows)  # checked before all rows are in memory
    return np.array(bitmap.to_array(), np.int64)


def _check_last(row: int, rows: int) -> None:
    if row >= rows:
        raise ValueError(f"row {row:,} of a data file of {rows:,} rows")
