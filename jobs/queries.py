"""Read the queries of a search from the command line, standard input or a file, in batches."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from typing import NamedTuple

from pipeline.errors import ConfigError, DataError
from pipeline.text.formats.queries import is_parquet, read_lines, read_texts

_BATCH_QUERIES = 256  # enough to use the encoder well, and few enough to be answered within a second or two


class Query(NamedTuple):
    """A query with its number."""

    number: int
    """number of the query, from 1; for a file, the number of its line or row"""
    text: str


@dataclass
class QueryTexts:
    """The source of queries: texts of the command line, or a file."""

    texts: tuple[str, ...] = ()
    file: str | None = None
    """a path or a URI; - for standard input"""
    column: str | None = None
    """the column of a Parquet file"""
    blank: int = field(default=0, init=False)
    """number of blank lines or rows that were skipped so far"""

    @classmethod
    def of(cls, texts: Sequence[str], file: str | None, column: str | None) -> "QueryTexts":
        """Check the arguments of the command line, and return the source of queries that they name.

        Raises:
            ConfigError: they name neither texts nor a file, or both; "-" is among other texts; or a column is
                given without a Parquet file.
        """
        if list(texts) == ["-"] and file is None:
            texts, file = (), "-"
        if "-" in texts:
            raise ConfigError(
                "search: QUERY",
                "- alone, or texts",
                "- among other queries",
                "give - alone to read queries from standard input",
            )
        if bool(texts) == (file is not None):
            raise ConfigError(
                "search: QUERY",
                "texts, or --queries FILE",
                "both" if texts else "neither",
                "give one of the two; - reads lines from standard input",
            )
        if column is not None and not is_parquet(file or ""):
            found = file or "queries on the command line"
            raise ConfigError("search: --column", "a Parquet file in --queries", found, "leave --column out")
        return cls(tuple(texts), file, column)

    @property
    def name(self) -> str:
        """Name of the source in messages."""
        return "standard input" if self.file == "-" else self.file or "the command line"

    @property
    def all_single_words(self) -> bool:
        """True for several queries of one word each, which may be one query whose quotes are missing."""
        return len(self.texts) > 1 and not any(" " in text.strip() for text in self.texts)

    def batches(self) -> Iterator[list[Query]]:
        """Yield all queries in order, in batches. A query that is typed on a terminal is a batch by itself.

        Raises:
            DataError: there is no query.
        """
        queries = self._nonblank()
        size = 1 if self.file == "-" and sys.stdin.isatty() else _BATCH_QUERIES
        has_queries = False
        while batch := list(islice(queries, size)):
            has_queries = True
            yield batch
        if not has_queries:
            raise DataError(self.name, "a query", "none", "give one text on each line")

    def _nonblank(self) -> Iterator[Query]:
        """Yield the queries, and count the blank ones of a file."""
        if self.file is None:
            yield from map(Query, count(1), self.texts)
            return
        from_stdin = self.file == "-"
        texts = read_lines(sys.stdin.buffer, self.name) if from_stdin else read_texts(self.file, self.column)
        for query in map(Query, count(1), texts):
            if query.text.strip():
                yield query
            else:
                self.blank += 1
