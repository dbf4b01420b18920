"""Write files and records once: a run uses the files that an earlier run has stored completely."""

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import DataError
from pipeline.store.files.base import Store, sha256_of
from pipeline.store.records.sealed_json import FileRef, Stored

Record = TypeVar("Record", bound=Stored)


def load_or_make(store: Store, path: str, kind: type[Record], make: Callable[[], Record]) -> Record:
    """Load the complete record that an earlier run stored at `path`, or else make it and store it there.

    Raises:
        DataError: the stored record is damaged.
    """
    return kind.load_complete(store, path) or create_record(store, path, make())


def load_or_make_racing(store: Store, path: str, kind: type[Record], make: Callable[[], Record]) -> Record:
    """Load or make a record while concurrent runs may make the same.

    `make` fails if another run has stored its record and deleted the temporary files that both use. Then that
    run's record is returned.
    """
    try:
        return load_or_make(store, path, kind, make)
    except (FileNotFoundError, DataError):
        if record := kind.load_complete(store, path):
            return record
        raise


def create_record(store: Store, path: str, record: Record) -> Record:
    """Store a record, unless a concurrent run has stored a complete one. Returns the stored record.

    A stored record is replaced if it names missing files or is truncated, as after a process was killed while
    it wrote to a file system without hard links.
    """
    if store.create(path, record.to_json()):
        return record
    if winner := type(record).load_complete(store, path):
        return winner
    store.write(path, record.to_json())
    return record


def store_by_content(store: Store, content: bytes, stem: str, suffix: str, rows: int = 0) -> FileRef:
    """Store bytes in a file named `stem`-<first 12 digits of their sha256>`suffix`, if it is not there yet.

    Args:
        rows: number of rows in the file, recorded in the reference.
    """
    digest = sha256(content).hexdigest()
    reference = FileRef(path=f"{stem}-{digest[:12]}{suffix}", sha256=digest, rows=rows, bytes=len(content))
    if not reference.is_complete(store):
        store.write(reference.path, content)
    return reference


def store_table_by_content(store: Store, table: pa.Table, stem: str, **options: Any) -> FileRef:
    """Store a table as a Parquet file, named as by `store_by_content`.

    Args:
        options: options of `pq.write_table`.
    """
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **options)
    return store_by_content(store, sink.getvalue().to_pybytes(), stem, ".parquet", len(table))


def put_by_content(store: Store, file: Path, stem: str, rows: int, digits: int = 24) -> FileRef:
    """Move a local file into the store, named `stem`-<first digits of its sha256> with the file's suffix.

    Args:
        stem: beginning of the path; if it ends with "/", the digits are the whole file name.
        rows: number of rows in the file, recorded in the reference.
        digits: number of hexadecimal digits in the name.
    """
    digest, size = sha256_of(file), file.stat().st_size
    separator = "" if stem.endswith("/") else "-"
    path = f"{stem}{separator}{digest[:digits]}{file.suffix}"
    store.put(file, path)
    return FileRef(path=path, sha256=digest, rows=rows, bytes=size)
