"""Read delete files of Iceberg tables: Parquet files of positions, and Puffin files of deletion vectors."""

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
from pipeline.store.files.open_store import store_of
from pipeline.text.sources.lake_file import DeleteFile
from pipeline.text.sources.storage_errors import storage_errors

_NO_ROWS = np.zeros(0, np.int64)
_MAX_CACHED_ROWS = 1 << 20  # of a file of positions: 8 MiB of numbers


def data_files_of(file: DeleteFile) -> frozenset[str]:
    """Return the locations of the data files of which a delete file lists rows."""
    with _opened(file) as stream:
        if file.is_puffin:
            return frozenset(map(_data_file_of, _puffin(stream).footer.blobs))
        batches = pq.ParquetFile(stream).iter_batches(columns=["file_path"])
        return frozenset(path for batch in batches for path in pc.unique(_paths(batch)).to_pylist())


@lru_cache(maxsize=16)
def deleted_rows(file: DeleteFile, location: str, rows: int) -> np.ndarray:
    """Return (n,) int64, ascending: the rows of a data file of so many rows that a delete file lists."""
    if not file.is_puffin and (by_data_file := _rows_by_data_file(file)) is not None:
        return by_data_file.get(location, _NO_ROWS)
    found = [_NO_ROWS]
    with _opened(file) as stream:
        if file.is_puffin:
            vectors = (vector.to_vector() for vector in _vectors(_puffin(stream), location, rows))
            found += [np.asarray(vector.to_numpy(), np.int64) for vector in vectors]
        else:
            for batch in pq.ParquetFile(stream).iter_batches(columns=["file_path", "pos"]):
                found.append(np.unique(_positions(batch.filter(pc.equal(_paths(batch), location)))))
                if len(found[-1]):
                    _check_last(int(found[-1][-1]), rows)
    return np.unique(np.concatenate(found))


@lru_cache(maxsize=4)
def _rows_by_data_file(file: DeleteFile) -> dict[str, np.ndarray] | None:
    """Return the rows that a file of positions lists, by the location of their data file, each ascending.

    The next data file of this process probably has the same delete file. None if it is too large to be kept.
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
    with storage_errors(file.uri, ""):
        store, name = store_of(file.uri)
        try:
            with store.open(name) as stream:
                yield stream
        except FileNotFoundError as error:
            raise DataError(
                file.uri,
                "a delete file of the table",
                "no such file: the snapshot has expired",
                "read a newer snapshot (corpus.snapshot), or restore the file",
            ) from error
        except (ValueError, LookupError) as error:
            raise DataError(
                file.uri,
                "a delete file of the table",
                f"a damaged one: {type(error).__name__}: {' '.join(str(error).split())}"[:400],
                "restore the file, or read another snapshot (corpus.snapshot)",
            ) from error


def _puffin(stream: pa.NativeFile) -> Any:
    """Read a Puffin file; raise ValueError if it is none."""
    from pyiceberg.table.puffin import PuffinFile

    return PuffinFile(stream.read())


def _data_file_of(blob: Any) -> str:
    from pyiceberg.table.deletion_vector import PROPERTY_REFERENCED_DATA_FILE

    return str(blob.properties[PROPERTY_REFERENCED_DATA_FILE])


def _vectors(file: Any, location: str, rows: int) -> list[Any]:
    """Decode the deletion vectors of one data file; raise ValueError or LookupError if one is damaged."""
    from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
    from zstandard import ZstdError

    wanted = [blob for blob in file.footer.blobs if _data_file_of(blob) == location]
    file.footer = file.footer.model_copy(update={"blobs": wanted})
    try:
        for blob in wanted:
            _check_vector(file.get_blob_payload(blob), rows)
    except ZstdError as error:
        raise ValueError(str(error)) from error
    return deletion_vectors_from_puffin_file(file)


def _check_vector(blob: bytes, rows: int) -> None:
    """Raise ValueError unless a blob has its checksum, and rows below `rows`: the library makes them all.

    Its length and vector precede the checksum. Each bitmap has the numbers of 2^32 rows.
    """
    from pyroaring import BitMap

    stop = 4 + int.from_bytes(blob[:4], "big")
    if len(blob) != stop + 4 or zlib.crc32(blob[4:stop]) != int.from_bytes(blob[stop:], "big"):
        raise ValueError("a deletion vector without the checksum that it was written with")
    start = 16
    for _ in range(int.from_bytes(blob[8:16], "little")):
        key = int.from_bytes(blob[start : start + 4], "little")
        bitmap = BitMap.deserialize(blob[start + 4 : stop])
        _check_last((key << 32) + (bitmap.max() if bitmap else 0), rows)
        start += 4 + len(bitmap.serialize())


def _check_last(row: int, rows: int) -> None:
    if row >= rows:
        raise ValueError(f"row {row:,} of a data file of {rows:,} rows")
