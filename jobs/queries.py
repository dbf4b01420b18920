"""The queries of a search: texts from the command line, from standard input or from a file, a batch at a time."""

import contextlib
import io
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa

from pipeline.errors import ConfigError, DataError
from pipeline.store.store import store_of

_BATCH = 256                    # queries: enough to fill the encoder's buffers, and answered within a second or two
_PARQUET = (".parquet", ".parq", ".pq")
_NAMES = ("query", "text")      # columns that hold queries where a Parquet file has several columns of strings


class Query(NamedTuple):
    """number: from 1; of a file the line or the row."""

    number: int
    text: str


@dataclass
class Queries:
    """Where queries come from. blank: how many lines or rows without a text were left out so far."""

    texts: tuple[str, ...] = ()
    file: str | None = None
    """a path or a URI; - for standard input"""
    column: str | None = None
    """of a Parquet file"""
    blank: int = field(default=0, init=False)

    @classmethod
    def of(cls, texts: Sequence[str], file: str | None, column: str | None) -> "Queries":
        """What the command line asks for. ConfigError unless it is either texts or one source of many."""
        if list(texts) == ["-"] and file is None:
            texts, file = (), "-"
        if "-" in texts:
            found = "- among other queries"
            raise ConfigError("search: QUERY", "- alone, or texts", found, "give - alone to read queries from standard input")
        if bool(texts) == (file is not None):
            found = "both" if texts else "neither"
            expected, remedy = "texts, or --queries FILE", "give one of the two; - reads lines from standard input"
            raise ConfigError("search: QUERY", expected, found, remedy)
        if column is not None and not (file or "").lower().endswith(_PARQUET):
            found = file or "queries on the command line"
            raise ConfigError("search: --column", "a Parquet file in --queries", found, "leave --column out")
        return cls(tuple(texts), file, column)

    @property
    def name(self) -> str:
        """What messages call the source."""
        return "standard input" if self.file == "-" else self.file or "the command line"

    @property
    def of_words(self) -> bool:
        """Whether several queries have one word each: one text may have been meant, without its quotes."""
        return len(self.texts) > 1 and not any(" " in text.strip() for text in self.texts)

    def batches(self) -> Iterator[list[Query]]:
        """All queries in order; a person who types them gets each answered by itself. DataError where there are none."""
        size = 1 if self.file == "-" and sys.stdin.isatty() else _BATCH
        queries, asked = iter(self._filled()), 0
        while batch := list(islice(queries, size)):
            asked += len(batch)
            yield batch
        if not asked:
            raise DataError(self.name, "a query", "none", "give one text on each line")

    def _filled(self) -> Iterator[Query]:
        if self.file is None:
            yield from map(Query, count(1), self.texts)
            return
        for query in map(Query, count(1), self._read(self.file)):
            if query.text.strip():
                yield query
            else:
                self.blank += 1

    def _read(self, file: str) -> Iterator[str]:
        if file == "-":
            yield from _lines(sys.stdin.buffer, self.name)
            return
        with _opened(file) as stream:
            if file.lower().endswith(_PARQUET):
                yield from _column(stream, file, self.column)
            else:
                yield from _lines(stream, file)


@contextlib.contextmanager
def _opened(file: str) -> Iterator[Any]:
    """A reader of the file; ConfigError where there is none, DataError where it cannot be read."""
    remedy = "check the path and its rights"
    try:
        if "://" in file:
            store, name = store_of(file)
            with store.open(name) as source:
                yield source
        else:
            with open(file, "rb") as stream:
                yield stream
    except (FileNotFoundError, IsADirectoryError):
        raise ConfigError("search: --queries", "a file", f"no such file: {file}", remedy) from None
    except (OSError, pa.ArrowException) as error:
        found = " ".join(str(error).split())
        raise DataError(file, "a readable file: one query on each line, or Parquet", found, remedy) from None


def _lines(stream: Iterable[bytes] | BinaryIO | pa.NativeFile, name: str) -> Iterator[str]:
    """Lines of UTF-8 without their ends; a byte order mark is left out."""
    lines = io.BufferedReader(stream) if isinstance(stream, pa.NativeFile) else stream
    for number, line in enumerate(lines, 1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            found = f"byte {line[error.start]:#04x}"
            raise DataError(f"{name}, line {number}", "UTF-8", found, "convert the file to UTF-8") from None


def _column(stream: Any, name: str, column: str | None) -> Iterator[str]:
    import pyarrow.parquet as pq

    opened = pq.ParquetFile(stream)
    chosen = _chosen(opened.schema_arrow, name, column)
    for batch in opened.iter_batches(batch_size=_BATCH, columns=[chosen]):
        yield from (text or "" for text in batch.column(0).cast(pa.large_string()).to_pylist())


def _chosen(schema: pa.Schema, name: str, column: str | None) -> str:
    """The column of queries: the named one, the only one of strings, query, or text."""
    strings = [field.name for field in schema if _is_text(field.type)]
    wanted = [column] if column is not None else strings if len(strings) == 1 else _NAMES
    if (found := next((each for each in wanted if each in strings), None)) is None:
        expected = f"a column {column} of strings" if column is not None else "one column of strings, or query or text"
        raise DataError(name, expected, ", ".join(schema.names) or "no columns", "name the column with --column")
    return found


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)
