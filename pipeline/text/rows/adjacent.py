"""Rows that have a sentence of a running document and the sentences before and after it."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from pipeline.errors import DataError
from pipeline.log import announce
from pipeline.text.rows.neighbours import follow_each_other
from pipeline.text.rows.row_groups import RowGroup, Span, file_changed
from pipeline.text.rows.training_rows import TrainingRows

ADJACENT = ("previous", "next", "next3")
"""Roles of the texts that are made from the rows before and after.

next3 is drawn from the next three sentences of the document, or from fewer at its end.
"""
RUNNING_TEXT = ("text", "document", "position")
"""Roles that the files must have."""
_AFTER = 3  # following sentences, from which next3 is drawn
_DRAWS = 6  # a multiple of 1, 2 and 3, so that each of one, two or three sentences is equally probable


@dataclass(frozen=True, kw_only=True)
class AdjacentRows(TrainingRows):
    """Rows with the role text and some of ADJACENT, for each sentence that has all of them.

    `groups` count these rows only; a row has the number of its sentence. Sentences of different row groups,
    like sentences of different documents, are not adjacent, so that row groups can be read one at a time, in
    any order. The sentence of the role next3 is the same in every epoch.
    """

    sentences: TrainingRows
    """the rows of the files"""
    seed: int = 0
    """seed of the draws of next3"""

    def read(self, spans: Sequence[Span], roles: Sequence[str] = ()) -> Iterator[pa.Table]:
        """Yield the rows of the spans in order, one piece at a time; see `TrainingRows.read`."""
        groups = {(group.file.uri, group.number): group for group in self.sentences.groups}
        for span in spans:
            group, done = groups[span.group.file.uri, span.group.number], 0
            for table in self._rows(group):
                first, end = max(span.start - done, 0), min(span.stop - done, len(table))
                if end > first:
                    yield table.slice(first, end - first).select([*(roles or self.roles), "row"])
                done += len(table)
                if done >= span.stop:
                    break
            else:
                raise file_changed(span.group, done)

    def _rows(self, group: RowGroup) -> Iterator[pa.Table]:
        """Yield all rows of a row group, one piece at a time."""
        adjacent_roles, done = [role for role in self.roles if role in ADJACENT], 0
        draws = np.random.default_rng((self.seed, group.first_row)).integers(_DRAWS, size=group.kept)
        for window in _windows(self.sentences.read([Span(group, 0, group.kept)])):
            sentences = np.arange(window.start, window.stop)
            following = window.following()
            offsets = {
                "previous": -1,
                "next": 1,
                "next3": 1 + draws[done + sentences - window.start] % np.maximum(following, 1),
            }
            is_kept, done = window.has(adjacent_roles), done + len(sentences)
            table = window.table.take(sentences[is_kept])
            for role in adjacent_roles:
                rows = (sentences + offsets[role])[is_kept]
                table = table.append_column(role, window.table["text"].take(rows))
            yield table


def with_adjacent(sentences: TrainingRows, adjacent_roles: Sequence[str], seed: int) -> AdjacentRows:
    """Find the sentences of running text that have adjacent sentences, in one pass over the positions.

    Args:
        sentences: rows with the roles of RUNNING_TEXT.
        adjacent_roles: the roles of ADJACENT that the rows get.
        seed: seed of the draws of next3.

    Raises:
        DataError: no sentence has all these adjacent sentences.
    """
    groups = tuple(
        replace(group, kept=_count(sentences, group, adjacent_roles)) for group in sentences.groups
    )
    roles = (*(role for role in sentences.roles if role not in ("document", "position")), *adjacent_roles)
    rows = AdjacentRows(sentences.settings, roles, groups, sentences.counts, sentences=sentences, seed=seed)
    needed = " and ".join(
        ["the sentence before"] * ("previous" in adjacent_roles)
        + ["the sentence after"] * (set(adjacent_roles) != {"previous"})
    )
    if not len(rows):
        raise DataError(
            rows.name,
            "sentences that follow each other: rows of one document at positions that rise by one",
            f"none in {len(sentences):,} rows with {needed}",
            "write the rows in the order of the documents, in row groups of many rows",
        )
    announce(f"{rows.name}: {len(rows):,} of {len(sentences):,} sentences have {needed}")
    return rows


def _count(sentences: TrainingRows, group: RowGroup, roles: Sequence[str]) -> int:
    """Count the sentences of a row group that have adjacent sentences of these roles."""
    if not group.kept:
        return 0
    tables = sentences.read([Span(group, 0, group.kept)], ["document", "position"])
    return sum(int(window.has(roles).sum()) for window in _windows(tables))


class _Window(NamedTuple):
    """The rows from `start` up to `stop` of a table, and the rows around them.

    The table also has the row before `start` and the three rows from `stop` on, if the row group has them.
    """

    table: pa.Table
    start: int
    stop: int

    def has(self, roles: Collection[str]) -> np.ndarray:
        """(stop - start,) bool: whether each row has adjacent sentences of all these roles."""
        has_all = np.ones(self.stop - self.start, bool)
        if "previous" in roles:
            follows = np.concatenate([[False], follow_each_other(self.table)])
            has_all &= follows[self.start : self.stop]
        if set(roles) != {"previous"}:
            has_all &= self.following() > 0
        return has_all

    def following(self) -> np.ndarray:
        """(stop - start,) int64: number of sentences, up to three, that follow each row in its document."""
        follows = np.concatenate([follow_each_other(self.table), np.zeros(_AFTER, bool)])
        runs = np.lib.stride_tricks.sliding_window_view(follows, _AFTER)
        return np.asarray(np.cumprod(runs[self.start : self.stop], axis=1).sum(axis=1))


def _windows(tables: Iterable[pa.Table]) -> Iterator[_Window]:
    """Divide consecutive tables into windows, such that each row is between the bounds of one of them."""
    rest: pa.Table | None = None
    start = 0
    for table in tables:
        rest = table if rest is None else pa.concat_tables([rest, table])
        stop = max(start, len(rest) - _AFTER)
        if stop > start:
            yield _Window(rest, start, stop)
        first = max(0, stop - 1)  # the row before the next window
        rest, start = rest.slice(first), stop - first
    if rest is not None and start < len(rest):
        yield _Window(rest, start, len(rest))
