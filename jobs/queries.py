"""The queries of a search, from the command line, from standard input or from a file, in batches."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from typing import NamedTuple

from pipeline.errors import ConfigError, DataError
from pipeline.text.corpus.queries import is_parquet, read_lines, read_texts

_BATCH = 256  # queries: enough to fill the encoder's buffers, and answered within a second or two


class Query(NamedTuple):
    """A query with its number."""

    number: int
    """from 1; in a file that of the line or the row"""
    text: str


@dataclass
class QueryTexts:
    """The source of queries."""

    texts: tuple[str, ...] = ()
    file: str | None = None
    """a path or a URI; - for standard input"""
    column: str | None = None
    """of a Parquet file"""
    blank: int = field(default=0, init=False)
    """lines or rows without a text that were left out so far"""

    @classmethod
    def of(cls, texts: Sequence[str], file: str | None, column: str | None) -> "QueryTexts":
        """Return the queries that the command line names.

        Raises:
            ConfigError: it names neither texts nor one source, or both.
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
        """The name of the source in messages."""
        return "standard input" if self.file == "-" else self.file or "the command line"

    @property
    def of_words(self) -> bool:
        """True if several queries have one word each: one text may have been meant, without its quotes."""
        return len(self.texts) > 1 and not any(" " in text.strip() for text in self.texts)

    def batches(self) -> Iterator[list[Query]]:
        """Yield all queries in order. Queries that are typed on a terminal come one by one.

        Raises:
            DataError: there is no query.
        """
        queries, found = self._filled(), False
        while batch := list(islice(queries, 1 if self.file == "-" and sys.stdin.isatty() else _BATCH)):
            found = True
            yield batch
        if not found:
            raise DataError(self.name, "a query", "none", "give one text on each line")

    def _filled(self) -> Iterator[Query]:
        if self.file is None:
            yield from map(Query, count(1), self.texts)
            return
        piped = self.file == "-"
        texts = read_lines(sys.stdin.buffer, self.name) if piped else read_texts(self.file, self.column)
        for query in map(Query, count(1), texts):
            if query.text.strip():
                yield query
            else:
                self.blank += 1
