"""Batches of neighbouring sentences: each batch is a run of consecutive sentences of one document."""

from collections.abc import Iterator
from itertools import count, islice

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import DataError
from pipeline.settings.training import OrderSettings
from pipeline.text.rows.batches import GlobalBatch
from pipeline.text.rows.order import skip_rows
from pipeline.text.rows.pairs import TrainingRows


class NeighbourOrder:
    """Yield batches that are pieces of `batch_rows` consecutive sentences of one document, in its order.

    Two consecutive rows are neighbours if they have the same document and the second one's position is one
    higher. A row without a document has no neighbours. If a document does not divide into complete pieces,
    each epoch draws the row at which its first piece begins, and the remaining rows take no part in that
    epoch. Pieces are read in windows in the order of the files, and shuffled within a window.

    The settings `bucket_batches` and `repeats` have no effect, because they would separate neighbours.

    Raises:
        DataError: no document is as long as a batch.
    """

    def __init__(self, pairs: TrainingRows, settings: OrderSettings) -> None:
        self._pairs, self._settings = pairs, settings
        self._run_lengths = _run_lengths(pairs)
        if not self.steps_per_epoch:
            raise DataError(
                pairs.name,
                f"a document of {settings.batch_rows:,} consecutive sentences",
                f"at most {self._run_lengths.max():,}",
                "make the batch smaller, or write the rows in the order of the documents",
            )

    @property
    def batch_rows(self) -> int:
        """Sentences of every batch."""
        return self._settings.batch_rows

    @property
    def steps_per_epoch(self) -> int:
        """Complete pieces of all documents together."""
        return int((self._run_lengths // self.batch_rows).sum())

    def batches(self, start: int) -> Iterator[GlobalBatch]:
        """Yield the batch of step `start` and all later ones, without end.

        Row groups before the window of step `start` are not opened.
        """
        window_pieces = max(1, self._settings.window_rows // self.batch_rows)
        for epoch in count(start // self.steps_per_epoch):
            first_rows = self._first_rows(epoch)
            done = max(0, start - epoch * self.steps_per_epoch)
            window_start = done - done % window_pieces
            pieces = _read_pieces(self._pairs, first_rows[window_start:], self.batch_rows)
            while window := list(islice(pieces, window_pieces)):
                rng = np.random.default_rng((self._settings.seed, epoch, window_start + 1))
                for number in rng.permutation(len(window))[max(0, done - window_start) :]:
                    yield GlobalBatch(self._pairs.name, window[number])
                window_start += len(window)
                window.clear()  # frees the rows before those of the next window are read

    def _first_rows(self, epoch: int) -> np.ndarray:
        """(steps,) int64: number of the first row of every piece, ascending."""
        rng = np.random.default_rng((self._settings.seed, epoch))
        pieces = self._run_lengths // self.batch_rows
        run_starts = np.cumsum(self._run_lengths) - self._run_lengths
        starts = run_starts + rng.integers(0, self._run_lengths - pieces * self.batch_rows + 1)
        return np.concatenate(
            [
                first + np.arange(0, count_of_run * self.batch_rows, self.batch_rows)
                for first, count_of_run in zip(starts, pieces, strict=True)
            ]
        )


def _run_lengths(pairs: TrainingRows) -> np.ndarray:
    """(runs,) int64: lengths of the runs of rows with the same document and positions that rise by one.

    A row without a document is a run of its own.
    """
    run_starts, rows_before = [], 0
    previous: tuple[object, int] | None = None  # document and position of the last row of the previous table
    for table in pairs.read(pairs.spans(), ["document", "position"]):
        documents, positions = table["document"].combine_chunks(), table["position"].to_numpy()
        codes = pc.fill_null(documents.dictionary_encode().indices, -1).to_numpy()
        is_neighbour = np.zeros(len(table), bool)  # of the row before
        is_neighbour[0] = codes[0] >= 0 and (documents[0].as_py(), positions[0] - 1) == previous
        is_neighbour[1:] = (np.diff(codes) == 0) & (np.diff(positions) == 1) & (codes[1:] >= 0)
        run_starts.append(rows_before + np.flatnonzero(~is_neighbour))
        rows_before += len(table)
        previous = documents[-1].as_py(), int(positions[-1])
    return np.diff(np.concatenate([*run_starts, [rows_before]]))


def _read_pieces(pairs: TrainingRows, first_rows: np.ndarray, size: int) -> Iterator[pa.Table]:
    """Yield a table of `size` rows for each of the ascending numbers of first rows."""
    if not len(first_rows):
        return
    buffer_start = int(first_rows[0])  # number of the first row of `buffer`
    blocks = pairs.read(skip_rows(pairs.spans(), buffer_start))
    buffer = next(blocks)
    for first in first_rows.tolist():
        while first + size > buffer_start + len(buffer):
            passed = min(len(buffer), first - buffer_start)
            buffer = pa.concat_tables([buffer.slice(passed), next(blocks)])
            buffer_start += passed
        yield buffer.slice(first - buffer_start, size).combine_chunks()
