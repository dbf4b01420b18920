"""Read delete files of Iceberg tables: Parquet files of positions, and Puffin files of deletion vectors."""

import contextlib
import zlib
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.errors import DataError
from pipeline.store.store import store_of
from pipeline.text.corpus.storage_errors import storage_errors
from pipeline.text.corpus.table_file import DeleteFile


def data_files_of(file: DeleteFile) -> frozenset[str]:
    """Return the locations of the data files of which a delete file lists rows."""
    with _opened(file) as stream:
        if file.is_puffin:
            return frozenset(each.referenced_data_file for each in _vectors(stream))
        batches = pq.ParquetFile(stream).iter_batches(columns=["file_path"])
        return frozenset(path for batch in batches for path in pc.unique(batch["file_path"]).to_pylist())


@lru_cache(maxsize=16)
def deleted_rows(file: DeleteFile, location: str) -> np.ndarray:
    """Return (n,) int64, ascending: the rows of a data file that a delete file lists."""
    with _opened(file) as stream:
        if file.is_puffin:
            found = [each.to_vector() for each in _vectors(stream) if each.referenced_data_file == location]
        else:
            batches = pq.ParquetFile(stream).iter_batches(columns=["file_path", "pos"])
            found = [batch.filter(pc.equal(batch["file_path"], location))["pos"] for batch in batches]
    rows = [np.asarray(positions.to_numpy(zero_copy_only=False), np.int64) for positions in found]
    return np.unique(np.concatenate([np.zeros(0, np.int64), *rows]))


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


def _vectors(stream: pa.NativeFile) -> list[Any]:
    """Read the deletion vectors of a Puffin file; raise ValueError or LookupError if it is damaged."""
    from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
    from pyiceberg.table.puffin import PuffinFile
    from zstandard import ZstdError

    file = PuffinFile(stream.read())
    try:
        for blob in file.footer.blobs:
            _check_sum(file.get_blob_payload(blob))
    except ZstdError as error:
        raise ValueError(str(error)) from error
    return deletion_vectors_from_puffin_file(file)


def _check_sum(blob: bytes) -> None:
    """Raise ValueError unless a blob has the checksum in its last bytes: its length and vector precede it."""
    stop = 4 + int.from_bytes(blob[:4], "big")
    if len(blob) != stop + 4 or zlib.crc32(blob[4:stop]) != int.from_bytes(blob[stop:], "big"):
        raise ValueError("a deletion vector without the checksum that it was written with")
