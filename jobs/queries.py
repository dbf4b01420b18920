"""The queries of a search: texts from the command line, from standard input or from a file, a batch at a
time.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from typing import NamedTuple

from pipeline.errors import ConfigError, DataError
from pipeline.text.corpus.queries import is_parquet, read_lines, read_texts

_BATCH = 256  # queries: enough to fill the encoder's buffers, and answered within a second or two


class Query(NamedTuple):
    """number: from 1; of a file the line or the row."""

    number: int
    text: str


@dataclass
class QueryTexts:
    """The source of queries.

    blank: lines or rows without a text that were left out so far.
    """

    texts: tuple[str, ...] = ()
    file: str | None = None
    """a path or a URI; - for standard input"""
    column: str | None = None
    """of a Parquet file"""
    blank: int = field(default=0, init=False)

    @classmethod
    def of(cls, texts: Sequence[str], file: str | None, column: str | None) -> "QueryTexts":
        """Read the queries that the command line names.

        ConfigError unless it is either texts or one source of many.
        """
        if list(texts) == ["-"] and file is None:
            texts, file = (), "-"
        if "-" in texts:
            found = "- among other queries"
            raise ConfigError(
                "search: QUERY",
                "- alone, or texts",
                found,
                "give - alone to read queries from standard input",
            )
        if bool(texts) == (file is not None):
            found = "both" if texts else "neither"
            expected, remedy = (
                "texts, or --queries FILE",
                "give one of the two; - reads lines from standard input",
            )
            raise ConfigError("search: QUERY", expected, found, remedy)
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
        """All queries in order; a person who types them gets each answered by itself.

        DataError where there are none.
        """
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
        texts = (
            read_lines(sys.stdin.buffer, self.name)
            if self.file == "-"
            else read_texts(self.file, self.column)
        )
        for query in map(Query, count(1), texts):
            if query.text.strip():
                yield query
            else:
                self.blank += 1
