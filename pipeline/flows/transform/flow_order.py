"""The order of rows in the training of a flow: shuffled in each epoch, read in windows of bounded size."""

from collections.abc import Callable, Iterator, Sequence
from itertools import count, islice

import numpy as np

from pipeline.flows.rows import LiveRows, PlacedUnit, is_live, row_addresses
from pipeline.store.dead import DeadRows
from pipeline.store.schema import vectors_at

PIECE_ROWS = 8_192  # consecutive rows of a unit, read together: 12 MB at d = 384
WINDOW_PIECES = 8  # pieces shuffled together, from eight parts of the corpus: 100 MB at d = 384


Prepare = Callable[[np.ndarray], np.ndarray]
"""a function from raw vectors (n, d) to the inputs (n, d') of the flow"""


class RowOrder:
    """Shuffled batches of the live rows of units, except rows at `left_out` addresses.

    The order depends only on units, seed and epoch. Pieces of consecutive rows are shuffled; eight pieces
    form a window, whose rows are shuffled. To start at a later step, windows before it are not read.

    Raises:
        DataError: on reading, if a file is not the one recorded.
        SpaceMismatch: on reading, if vectors belong to another space.
    """

    def __init__(
        self, source: LiveRows, units: Sequence[PlacedUnit], left_out: np.ndarray, batch_rows: int, seed: int
    ) -> None:
        self._source, self._seed = source, seed
        self._left_out, self._dead = np.sort(left_out), DeadRows(source.store, source.dead)
        sizes = [len(self._rows(unit)) for unit in units]
        self.rows = sum(sizes)
        # (unit, slice of its rows that are trained on)
        self._pieces = [
            (unit, slice(start, min(start + PIECE_ROWS, size)))
            for unit, size in zip(units, sizes, strict=True)
            for start in range(0, size, PIECE_ROWS)
        ]
        self.batch_rows = max(1, min(batch_rows, self.rows))

    @property
    def steps_per_epoch(self) -> int:
        """Number of full batches of an epoch; the remaining rows, others in each epoch, are skipped."""
        return self.rows // self.batch_rows

    def batches(self, start: int, prepare: Prepare) -> Iterator[np.ndarray]:
        """Yield vectors (batch_rows, d) of step `start` and of all later steps, without end.

        Args:
            start: first step.
            prepare: applied to the vectors of each piece.
        """
        first_epoch, skipped_steps = divmod(start, self.steps_per_epoch)
        for epoch in count(first_epoch):
            windows = self._windows(epoch, skipped_steps * self.batch_rows, prepare)
            yield from islice(_cut(windows, self.batch_rows), self.steps_per_epoch - skipped_steps)
            skipped_steps = 0

    def _windows(self, epoch: int, skip: int, prepare: Prepare) -> Iterator[np.ndarray]:
        """Yield the rows of the epoch in order, without the first `skip`."""
        piece_order = np.random.default_rng((self._seed, epoch)).permutation(len(self._pieces))
        for first in range(0, len(piece_order), WINDOW_PIECES):
            pieces = [self._pieces[number] for number in piece_order[first : first + WINDOW_PIECES]]
            size = sum(rows.stop - rows.start for _, rows in pieces)
            if skip < size:
                order = np.random.default_rng((self._seed, epoch, first + 1)).permutation(size)
                yield np.concatenate([prepare(self._read(*piece)) for piece in pieces])[order[skip:]]
            skip = max(0, skip - size)

    def _read(self, unit: PlacedUnit, rows: slice) -> np.ndarray:
        return vectors_at(self._source.open(unit), self._rows(unit)[rows])

    def _rows(self, unit: PlacedUnit) -> np.ndarray:
        """Return the rows of the unit's file that are trained on, ascending."""
        return np.flatnonzero(is_live(unit, self._dead) & ~np.isin(row_addresses(unit), self._left_out))


def _cut(blocks: Iterator[np.ndarray], size: int) -> Iterator[np.ndarray]:
    """Yield the rows of all blocks in batches of `size`; an incomplete batch at the end is dropped."""
    rest: np.ndarray | None = None
    for block in blocks:
        rows = block if rest is None else np.concatenate([rest, block])
        end = len(rows) - len(rows) % size
        yield from (rows[start : start + size] for start in range(0, end, size))
        rest = rows[end:].copy()
