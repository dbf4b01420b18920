"""Read queries from a file: one on each line, or a column of a Parquet file."""

import contextlib
import io
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import ConfigError, DataError
from pipeline.store.arrays import is_text
from pipeline.store.store import store_of

_BATCH = 256  # rows of a Parquet file in memory
_PARQUET = (".parquet", ".parq", ".pq")
_NAMES = ("query", "text")  # columns that hold queries where a Parquet file has several columns of strings


def is_parquet(file: str) -> bool:
    """Return whether the file is read as Parquet, by its name."""
    return file.lower().endswith(_PARQUET)


def read_texts(file: str, column: str | None = None) -> Iterator[str]:
    """Yield every line of a text file or every row of a Parquet column; blank ones too.

    Args:
        file: a path or a URI.
        column: column of a Parquet file; None: its only column of strings, or query, or text.

    Raises:
        ConfigError: there is no such file.
        DataError: the file cannot be read.
    """
    with _open(file) as stream:
        if is_parquet(file):
            yield from _read_column(stream, file, column)
        else:
            yield from read_lines(stream, file)


@contextlib.contextmanager
def _open(file: str) -> Iterator[Any]:
    """Open a file for reading. ConfigError if it is missing, DataError if it cannot be read."""
    remedy = "check the path and its permissions"
    try:
        if "://" in file:
            store, name = store_of(file)
            with store.open(name) as source:
                yield source
        else:
            with open(file, "rb") as stream:
                yield stream
    except (FileNotFoundError, IsADirectoryError):
        raise ConfigError(f"queries: {file}", "a file", "no such file", remedy) from None
    except (OSError, pa.ArrowException) as error:
        raise DataError(
            file, "a readable file: one query on each line, or Parquet", " ".join(str(error).split()), remedy
        ) from None


def read_lines(stream: Iterable[bytes] | BinaryIO | pa.NativeFile, name: str) -> Iterator[str]:
    """Yield lines of UTF-8 without their ends and without a byte order mark. DataError for invalid UTF-8."""
    lines = io.BufferedReader(stream) if isinstance(stream, pa.NativeFile) else stream
    for number, line in enumerate(lines, 1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{name}, line {number}",
                "UTF-8",
                f"byte {line[error.start]:#04x}",
                "convert the file to UTF-8",
            ) from None


def _read_column(stream: Any, name: str, column: str | None) -> Iterator[str]:
    opened = pq.ParquetFile(stream)
    chosen = _query_column(opened.schema_arrow, name, column)
    for batch in opened.iter_batches(batch_size=_BATCH, columns=[chosen]):
        yield from (text or "" for text in batch.column(0).cast(pa.large_string()).to_pylist())


def _query_column(schema: pa.Schema, name: str, column: str | None) -> str:
    """The column of queries: the named one, else the only column of strings, else query or text."""
    strings = [field.name for field in schema if is_text(field.type)]
    wanted = [column] if column is not None else strings if len(strings) == 1 else _NAMES
    if (found := next((each for each in wanted if each in strings), None)) is None:
        raise DataError(
            name,
            "one column of strings, or query or text" if column is None else f"a column {column} of strings",
            ", ".join(schema.names) or "no columns",
            "name the column with --column",
        )
    return found
