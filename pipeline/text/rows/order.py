"""The order in which a training meets its rows: one for each (seed, epoch), whatever the number of ranks, read a window at a time."""

from collections.abc import Iterator, Sequence
from itertools import chain, count, repeat

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import DataError
from pipeline.settings.training import TEXTS, OrderSettings
from pipeline.text.rows.batches import GlobalBatch
from pipeline.text.rows.false_negatives import apart, codes
from pipeline.text.rows.pairs import Pairs, Span
from pipeline.text.rows.roles import COMPARED


class ShuffledOrder:
    """Every row once an epoch, but for those left over when the window at the end has no whole batch for them; they are others in each epoch.

    Row groups are shuffled and begun somewhere, windows of their rows shuffled. DataError for fewer rows than a batch.
    """

    def __init__(self, pairs: Pairs, settings: OrderSettings) -> None:
        if len(pairs) < settings.batch_rows:
            raise DataError(
                pairs.name,
                f"rows for a batch of {settings.batch_rows:,}",
                f"{len(pairs):,}",
                "give more rows, or make the batch smaller",
            )
        self._pairs, self._settings = pairs, settings
        self._window_rows = max(1, settings.window_rows // settings.batch_rows) * settings.batch_rows

    @property
    def batch_rows(self) -> int:
        return self._settings.batch_rows

    @property
    def steps_per_epoch(self) -> int:
        return len(self._pairs) // self.batch_rows

    @property
    def left_over(self) -> int:
        """Rows of an epoch that are in no batch."""
        return len(self._pairs) % self.batch_rows

    def batches(self, start: int) -> Iterator[GlobalBatch]:
        """That of step `start` and all later ones, without end. No window before that of step `start` is kept, no row group before it opened."""
        for epoch in count(start // self.steps_per_epoch):
            yield from self._epoch(
                epoch, start - epoch * self.steps_per_epoch if start > epoch * self.steps_per_epoch else 0
            )

    def _epoch(self, epoch: int, done: int) -> Iterator[GlobalBatch]:
        first, skip = divmod(done, self._window_rows // self.batch_rows)
        windows = cut(
            self._pairs.read(without_first(self._spans(epoch), first * self._window_rows)), self._window_rows
        )
        draws = (np.random.default_rng((self._settings.seed, epoch, number + 1)) for number in count(first))
        yield from chain.from_iterable(
            map(self._dealt, windows, draws, chain([skip], repeat(0)))
        )  # no name holds a window while the next one is read

    def _spans(self, epoch: int) -> list[Span]:
        """All rows. The first row group begins at some row and its head comes last: so windows differ between epochs even in a single row group."""
        rng = np.random.default_rng((self._settings.seed, epoch))
        spans = self._pairs.spans()
        spans = [spans[place] for place in rng.permutation(len(spans))]
        group, at = spans[0].group, int(rng.integers(len(spans[0])))
        parts = [Span(group, at, group.kept), *spans[1:], Span(group, 0, at)]
        return [part for part in parts if len(part)]

    def _dealt(self, window: pa.Table, rng: np.random.Generator, skip: int) -> Iterator[GlobalBatch]:
        """The window's batches without the first `skip`."""
        whole = len(window) // self.batch_rows
        drawn = self._bucketed(rng.permutation(len(window))[: whole * self.batch_rows], window).reshape(
            whole, self.batch_rows
        )
        compared = [role for role in COMPARED if role in window.column_names]
        order = (
            apart(drawn, codes(window, compared)) if self._settings.repeats == "drop" and compared else drawn
        )
        exchanged, turn = (order != drawn).sum(1), rng.permutation(whole)
        table = window.take(
            rng.permuted(order[turn], axis=1).ravel()
        )  # a rank's slice is to be no shorter than another's
        del window  # half of what is held
        for place in range(skip, whole):
            part = table.slice(place * self.batch_rows, self.batch_rows)
            yield GlobalBatch(
                self._pairs.name, part, int(exchanged[turn[place]]), self._settings.repeats == "mask"
            )

    def _bucketed(self, drawn: np.ndarray, window: pa.Table) -> np.ndarray:
        """`drawn` rows, so many batches at a time sorted by length."""
        size = self._settings.bucket_batches * self.batch_rows
        if self._settings.bucket_batches == 1:
            return drawn
        lengths = characters(window)
        buckets = (drawn[first : first + size] for first in range(0, len(drawn), size))
        return np.concatenate(
            [
                np.zeros(0, np.int64),
                *(bucket[np.argsort(lengths[bucket], kind="stable")] for bucket in buckets),
            ]
        )


def characters(table: pa.Table) -> np.ndarray:
    """(n,) int64 characters of each row's texts together."""
    columns = [
        np.asarray(pc.utf8_length(table[role]).to_numpy(), np.int64)
        for role in TEXTS
        if role in table.column_names
    ]
    return np.asarray(sum(columns, np.zeros(table.num_rows, np.int64)))


def without_first(spans: Sequence[Span], rows: int) -> list[Span]:
    """What is left when so many rows are taken off."""
    left = []
    for span in spans:
        taken = min(rows, len(span))
        rows -= taken
        if taken < len(span):
            left.append(Span(span.group, span.start + taken, span.stop))
    return left


def cut(pieces: Iterator[pa.Table], size: int) -> Iterator[pa.Table]:
    """Their rows, `size` at a time, the last ones fewer; each in one piece of memory."""
    held: list[pa.Table] = []
    rows = 0
    for piece in pieces:
        held.append(piece)
        rows += len(piece)
        while rows >= size:
            rows -= size
            yield _taken_off(held, size)
    if rows:
        yield _taken_off(held, rows)


def _taken_off(held: list[pa.Table], size: int) -> pa.Table:
    """The first `size` rows of all that is held; the others stay."""
    whole = pa.concat_tables(held)
    held[:] = [whole.slice(size)]
    return whole.slice(0, size).combine_chunks()
