"""Remove the queries of a person from logs and from files for gates.queries, by their texts."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import ConfigError, DataError
from pipeline.text.formats.queries import is_parquet, open_queries
from pipeline.text.formats.user_queries import SPACE, TEXT, VECTOR
from pipeline.text.normalize import normalize
from pipeline.text.query_log.file import rewrite_log
from pipeline.text.query_log.lines import LoggedQuery
from pipeline.text.query_log.queries_file import write_table

SAME_COSINE = 0.9999
"""least cosine of a vector with the vector of a text that it is taken for: machines differ in last bits"""


@dataclass(frozen=True, eq=False)
class Forgotten:
    """Texts to forget, with their vectors."""

    texts: frozenset[str]
    """normalized"""
    vectors: np.ndarray | None = None
    """(t, d) raw vectors, as queries; None if they are not known"""
    space_id: str = ""
    """space of the vectors"""

    def match(self, text: str | None, vector: np.ndarray | None, space_id: str) -> bool | None:
        """Return whether a query has one of the texts; None if it has only a vector of another encoder."""
        if text:
            return normalize([text])[0].as_py() in self.texts
        if vector is None:
            return False
        if self.vectors is None or space_id != self.space_id or len(vector) != self.vectors.shape[1]:
            return None
        lengths = np.linalg.norm(self.vectors, axis=1) * np.linalg.norm(vector)
        return bool((self.vectors @ vector >= SAME_COSINE * lengths).any())


@dataclass
class ForgetCounts:
    """Numbers of queries of one file."""

    kept: int = 0
    forgotten: int = 0
    not_comparable: int = 0
    """queries with a vector of another encoder, which are removed, because they may have one of the texts"""
    damaged: int = 0
    """lines that could not be read, which are removed"""

    def keep(self, is_match: bool | None) -> bool:
        """Count a query. Returns whether it stays."""
        self.kept += is_match is False
        self.forgotten += is_match is True
        self.not_comparable += is_match is None
        return is_match is False


def forget_queries(file: str, forgotten: Forgotten) -> ForgetCounts:
    """Rewrite a log or a Parquet file of queries without those that have one of the texts.

    A file is replaced in one step, also if a service is writing the log.

    Raises:
        ConfigError: there is no such file, or its queries have no texts and the texts have no vectors.
        DataError: it is neither a log nor a file of queries.
    """
    counts = ForgetCounts()
    if is_parquet(file):
        _forget_rows(file, forgotten, counts)
        return counts

    def change(queries: Sequence[LoggedQuery]) -> Sequence[LoggedQuery]:
        _check_vectors(file, forgotten, any(query.text is None for query in queries))
        return [
            query
            for query in queries
            if counts.keep(forgotten.match(query.text, query.array(), query.space_id))
        ]

    try:
        counts.damaged = rewrite_log(Path(file), change).damaged
    except FileNotFoundError:
        raise ConfigError(file, "a log of queries", "no such file", "check the path") from None
    return counts


def _forget_rows(file: str, forgotten: Forgotten, counts: ForgetCounts) -> None:
    with open_queries(file) as stream:
        table = pq.read_table(stream)
    absent = [None] * len(table)
    texts, vectors, spaces = (
        table[name].to_pylist() if name in table.column_names else absent for name in (TEXT, VECTOR, SPACE)
    )
    if texts is absent and vectors is absent:
        found = ", ".join(table.column_names)
        raise DataError(file, "a column text or vector", found, "give files that manta query-log made")
    _check_vectors(file, forgotten, not all(texts))
    kept = [
        counts.keep(
            forgotten.match(text, None if vector is None else np.array(vector, np.float32), space or "")
        )
        for text, vector, space in zip(texts, vectors, spaces, strict=True)
    ]
    if not all(kept):
        write_table(file, table.filter(pa.array(kept)))


def _check_vectors(file: str, forgotten: Forgotten, is_needed: bool) -> None:
    if is_needed and forgotten.vectors is None:
        remedy = "add --root ROOT, whose encoder encodes the texts"
        raise ConfigError(f"--forget: {file}", "the vectors of the texts", "queries without texts", remedy)
