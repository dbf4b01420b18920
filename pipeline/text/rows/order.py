"""Batches of training rows in a shuffled order, which does not depend on the number of ranks."""

from collections.abc import Iterator, Sequence
from itertools import chain, count, repeat

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import DataError
from pipeline.settings.training import TEXTS, OrderSettings
from pipeline.text.formats.reject_rows import rechunk
from pipeline.text.rows.batches import GlobalBatch
from pipeline.text.rows.false_negatives import separate_repeats, text_codes
from pipeline.text.rows.roles import COMPARED
from pipeline.text.rows.row_groups import Span
from pipeline.text.rows.training_rows import TrainingRows


class ShuffledOrder:
    """Yield every row once an epoch, in shuffled batches.

    Row groups are shuffled, and the rows of each window of row groups are shuffled. Rows at the end of an
    epoch that do not fill a batch are left out; these rows differ between epochs.

    Raises:
        DataError: there are fewer rows than in a batch.
    """

    def __init__(self, training_rows: TrainingRows, settings: OrderSettings) -> None:
        if len(training_rows) < settings.batch_rows:
            raise DataError(
                training_rows.name,
                f"at least the {settings.batch_rows:,} rows of a batch",
                f"{len(training_rows):,}",
                "give more rows, or make the batch smaller",
            )
        self._training_rows, self._settings = training_rows, settings
        self._window_batches = max(1, settings.window_rows // settings.batch_rows)

    @property
    def batch_rows(self) -> int:
        """Rows of every batch."""
        return self._settings.batch_rows

    @property
    def steps_per_epoch(self) -> int:
        """Complete batches of an epoch."""
        return len(self._training_rows) // self.batch_rows

    def batches(self, start: int) -> Iterator[GlobalBatch]:
        """Yield the batch of step `start` and all later ones, without end.

        Row groups before the window of step `start` are not opened.
        """
        for epoch in count(start // self.steps_per_epoch):
            yield from self._epoch(epoch, done=max(0, start - epoch * self.steps_per_epoch))

    def _epoch(self, epoch: int, done: int) -> Iterator[GlobalBatch]:
        """Yield the epoch's batches, without the first `done`."""
        first, skip = divmod(done, self._window_batches)
        window_rows = self._window_batches * self.batch_rows
        spans = skip_rows(self._spans(epoch), first * window_rows)
        windows = rechunk(self._training_rows.read(spans), window_rows)
        rngs = (np.random.default_rng((self._settings.seed, epoch, number + 1)) for number in count(first))
        # Not a for loop, which would keep the old window in memory while the next one is read.
        yield from chain.from_iterable(map(self._shuffle_window, windows, rngs, chain([skip], repeat(0))))

    def _spans(self, epoch: int) -> list[Span]:
        """All rows, in the epoch's order of row groups.

        The first row group begins at a drawn row, and its rows before that one come last, so that windows
        differ between epochs even if there is only one row group.
        """
        rng = np.random.default_rng((self._settings.seed, epoch))
        spans = self._training_rows.spans()
        spans = [spans[number] for number in rng.permutation(len(spans))]
        group, start = spans[0].group, int(rng.integers(len(spans[0])))
        parts = [Span(group, start, group.kept), *spans[1:], Span(group, 0, start)]
        return [part for part in parts if len(part)]

    def _shuffle_window(self, window: pa.Table, rng: np.random.Generator, skip: int) -> Iterator[GlobalBatch]:
        """Yield the window's batches in a shuffled order, without the first `skip`."""
        batches = len(window) // self.batch_rows
        rows = self._sort_in_buckets(rng.permutation(len(window))[: batches * self.batch_rows], window)
        shuffled = order = rows.reshape(batches, self.batch_rows)
        compared = [role for role in COMPARED if role in window.column_names]
        if self._settings.repeats == "drop" and compared:
            order = separate_repeats(shuffled, text_codes(window, compared))
        batch_order = rng.permutation(batches)
        exchanged = (order != shuffled).sum(axis=1)[batch_order]
        # Rows are shuffled within each batch, so that the slice of every rank has texts of all lengths.
        table = window.take(rng.permuted(order[batch_order], axis=1).ravel())
        del window  # frees half of the memory in use
        masked = self._settings.repeats == "mask"
        for number in range(skip, batches):
            part = table.slice(number * self.batch_rows, self.batch_rows)
            yield GlobalBatch(self._training_rows.name, part, int(exchanged[number]), masked)

    def _sort_in_buckets(self, rows: np.ndarray, window: pa.Table) -> np.ndarray:
        """Sort the shuffled rows by length within each bucket of `bucket_batches` batches."""
        if self._settings.bucket_batches == 1:
            return rows
        texts = (window[role] for role in TEXTS if role in window.column_names)
        lengths = sum((pc.utf8_length(text).to_numpy() for text in texts), np.zeros(len(window), np.int64))
        buckets = np.arange(len(rows)) // (self._settings.bucket_batches * self.batch_rows)
        return rows[np.lexsort((lengths[rows], buckets))]


def skip_rows(spans: Sequence[Span], rows: int) -> list[Span]:
    """The spans without the first `rows` rows of all of them together."""
    remaining = []
    for span in spans:
        skipped = min(rows, len(span))
        rows -= skipped
        if skipped < len(span):
            remaining.append(Span(span.group, span.start + skipped, span.stop))
    return remaining
