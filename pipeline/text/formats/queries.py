"""Read queries from a file: one on each line, or a column of a Parquet file."""

import contextlib
import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import ConfigError, DataError
from pipeline.store.files.disk import describe_missing, regular_file
from pipeline.store.files.open_store import store_of
from pipeline.store.rows.arrays import is_text

_BATCH_ROWS = 256  # rows of a Parquet file in memory
_PARQUET_SUFFIXES = (".parquet", ".parq", ".pq")
_QUERY_COLUMNS = ("query", "text")  # names to try, in this order, if a file has several columns of strings


def is_parquet(file: str) -> bool:
    """Return whether a file is Parquet, by the suffix of its name."""
    return file.lower().endswith(_PARQUET_SUFFIXES)


def read_texts(file: str, column: str | None = None) -> Iterator[str]:
    """Yield every line of a text file, or every value of a Parquet column; blank ones too.

    Args:
        file: a path or a URI.
        column: column of a Parquet file; None selects its only column of strings, else `query`, else `text`.

    Raises:
        ConfigError: there is no such file.
        DataError: the file cannot be read, or is JSON or CSV.
    """
    with open_queries(file) as stream:
        if is_parquet(file):
            yield from _read_column(stream, file, column)
        else:
            lines = read_lines(stream, file)
            first = list(islice(lines, 2))
            _refuse_records(first, file)
            yield from chain(first, lines)


def _refuse_records(lines: Sequence[str], file: str) -> None:
    """Raise DataError for a file of records, such as JSON lines, whose lines are not the queries themselves.

    Args:
        lines: the first two lines.
        file: path or URI of the file.
    """
    first = lines[0] if lines else ""
    is_table = file.lower().endswith((".csv", ".tsv"))
    fields = {field.strip().strip('"').lower() for field in re.split("[,;\\t]", first)}
    if is_table and fields & {*_QUERY_COLUMNS}:
        found = "a table with a header"
    elif first and all(_are_objects(line) for line in lines if line.strip()):
        found = "JSON"
    else:
        return
    remedy = "write the texts of its queries to a .txt or .parquet file"
    raise DataError(file, "one query on each line, or Parquet", found, remedy)


def _are_objects(line: str) -> bool:
    """Return whether a line holds JSON objects, alone or as a part of an array."""
    objects = line.strip().removesuffix(",").removeprefix("[").removesuffix("]")
    try:
        found = json.loads(f"[{objects}]")
    except (ValueError, RecursionError):
        return False
    return bool(found) and all(isinstance(each, dict) for each in found)


@contextlib.contextmanager
def open_queries(file: str) -> Iterator[Any]:
    """Open a file for reading; raise ConfigError if it is missing, DataError if it cannot be read.

    Errors of reading, which occur in the caller's `with` block, are converted too.
    """
    remedy = "check the path and its permissions"
    try:
        if "://" in file:
            store, name = store_of(file)
            with store.open(name) as source:
                yield source
        else:
            is_stream = file.startswith(("/dev/fd/", "/dev/stdin", "/proc/self/fd/"))  # <(command) in a shell
            with open(file if is_stream else regular_file(file), "rb") as stream:
                yield stream
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise ConfigError(f"queries: {file}", "a file", describe_missing(error), remedy) from None
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise DataError(
            file, "a readable file: one query on each line, or Parquet", " ".join(str(error).split()), remedy
        ) from None


def read_lines(stream: Iterable[bytes] | BinaryIO | pa.NativeFile, name: str) -> Iterator[str]:
    """Yield lines without line ends and byte order mark; raise DataError for bytes that are not UTF-8."""
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
    """Yield the values of the column of queries; null becomes the empty string."""
    from pipeline.text.normalize import strings_of  # imported here: it takes a tenth of `manta --help`

    reader = pq.ParquetFile(stream)
    query_column = _query_column(reader.schema_arrow, name, column)
    first = 0
    for batch in reader.iter_batches(batch_size=_BATCH_ROWS, columns=[query_column]):
        yield from (text or "" for text in strings_of(batch.column(0), f"{name}: {query_column}", first))
        first += len(batch)


def _query_column(schema: pa.Schema, file: str, column: str | None) -> str:
    """Return the column of queries: `column`, else the only column of strings, else query or text."""
    strings = [field.name for field in schema if is_text(field.type)]
    if column is not None:
        candidates: Sequence[str] = [column]
    else:
        candidates = strings if len(strings) == 1 else _QUERY_COLUMNS
    if (query_column := next((name for name in candidates if name in strings), None)) is None:
        raise DataError(
            file,
            "one column of strings, or query or text" if column is None else f"a column {column} of strings",
            ", ".join(schema.names) or "no columns",
            "name the column with --column, or call it query",
        )
    return query_column
