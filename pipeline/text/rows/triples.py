"""Rows of three texts: a sentence of a running document with the sentences before and after it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import DataError
from pipeline.log import say
from pipeline.text.rows.neighbours import follow_each_other
from pipeline.text.rows.pairs import TrainingRows
from pipeline.text.rows.row_groups import RowGroup, Span, file_changed

NEIGHBOURS = ("previous", "next")
"""roles of the texts that are made from the rows before and after"""
RUNNING_TEXT = ("text", "document", "position")
"""roles that the files must have"""


@dataclass(frozen=True, kw_only=True)
class TripleRows(TrainingRows):
    """Rows with the roles previous, text and next, for each sentence that has both neighbours.

    `groups` have the numbers of triples; a triple's row number is that of its middle sentence. A sentence
    whose neighbour is in another row group, as one without a neighbour in its document, makes no triple: so
    row groups are read one at a time, in any order.
    """

    sentences: TrainingRows
    """the rows of the files"""

    def read(self, spans: Sequence[Span], roles: Sequence[str] = ()) -> Iterator[pa.Table]:
        """Yield the triples of the spans in order, one piece at a time; see `TrainingRows.read`."""
        groups = {(group.file.uri, group.number): group for group in self.sentences.groups}
        for span in spans:
            group, done = groups[span.group.file.uri, span.group.number], 0
            for table in _triples(self.sentences.read([Span(group, 0, group.kept)])):
                first, end = max(span.start - done, 0), min(span.stop - done, len(table))
                if end > first:
                    yield table.slice(first, end - first).select([*(roles or self.roles), "row"])
                done += len(table)
                if done >= span.stop:
                    break
            else:
                raise file_changed(span.group, done)


def triples_of(sentences: TrainingRows) -> TripleRows:
    """Find the triples of running text, in one pass over documents and positions.

    Raises:
        DataError: no sentence follows one of its document and precedes another.
    """
    groups = tuple(replace(group, kept=_count(sentences, group)) for group in sentences.groups)
    roles = (*(role for role in sentences.roles if role not in ("document", "position")), *NEIGHBOURS)
    rows = TripleRows(sentences.settings, roles, groups, sentences.counts, sentences=sentences)
    if not len(rows):
        raise DataError(
            rows.name,
            "sentences that follow each other: rows of one document at positions that rise by one",
            f"none in {len(sentences):,} rows with the sentence before and the sentence after",
            "write the rows in the order of the documents, in row groups of many rows",
        )
    say(f"{rows.name}: {len(rows):,} of {len(sentences):,} sentences have both neighbours")
    return rows


def _count(sentences: TrainingRows, group: RowGroup) -> int:
    """Count the triples of a row group."""
    if not group.kept:
        return 0
    tables = sentences.read([Span(group, 0, group.kept)], ["document", "position"])
    return sum(int(_is_middle(table).sum()) for table in _overlapping(tables))


def _triples(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the triples of consecutive tables: the rows in the middle, with the texts before and after."""
    for table in _overlapping(tables):
        triples = table.slice(1, len(table) - 2)
        for role, start in zip(NEIGHBOURS, (0, 2), strict=True):
            triples = triples.append_column(role, table["text"].slice(start, len(triples)))
        yield triples.filter(_is_middle(table))


def _overlapping(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Put the last two rows of each table before the next one; yield those of at least three rows."""
    rest: pa.Table | None = None
    for table in tables:
        joined = table if rest is None else pa.concat_tables([rest, table])
        if len(joined) > 2:
            yield joined
        rest = joined.slice(max(0, len(joined) - 2))


def _is_middle(table: pa.Table) -> pa.Array:
    """(rows - 2,) bool: the rows from the second to the last but one that have both neighbours."""
    follows = follow_each_other(table)
    return pc.and_(pa.array(follows[:-1]), pa.array(follows[1:]))
