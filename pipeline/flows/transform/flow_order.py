"""The order of rows in a training: one per seed and epoch, read in windows, so that memory stays bounded."""

from collections.abc import Callable, Iterator, Sequence
from itertools import count, islice

import numpy as np

from pipeline.flows.rows import LiveRows, PlacedUnit, row_addresses, vectors_at
from pipeline.store.address import row_of
from pipeline.store.dead import Dead

PIECE_ROWS = 8_192  # consecutive rows of a unit, read together: 12 MB at d = 384
WINDOW_PIECES = 8  # pieces shuffled together, from eight parts of the corpus: 100 MB at d = 384


Prepare = Callable[[np.ndarray], np.ndarray]


class RowOrder:
    """Batches of the live rows of units, without those at `left_out` addresses.

    The order depends only on units, seed and epoch. The pieces of all units are shuffled, and eight at a time
    become a window whose rows are shuffled; starting at a later step reads no window before it.

    Raises:
        DataError: on reading, if a file is not the one recorded.
        SpaceMismatch: on reading, if vectors belong to another space.
    """

    def __init__(
        self, source: LiveRows, units: Sequence[PlacedUnit], left_out: np.ndarray, batch_rows: int, seed: int
    ) -> None:
        self._source, self._units, self._seed = source, units, seed
        self._left_out, self._dead = np.sort(left_out), Dead.load(source.store, source.dead)
        sizes = [len(self._rows(number)) for number in range(len(units))]
        self.rows = sum(sizes)
        # (number of the unit, slice of its rows that take part)
        self._pieces = [
            (number, slice(start, min(start + PIECE_ROWS, size)))
            for number, size in enumerate(sizes)
            for start in range(0, size, PIECE_ROWS)
        ]
        self.batch_rows = max(1, min(batch_rows, self.rows))

    @property
    def steps_per_epoch(self) -> int:
        """Number of full batches of an epoch; the rows left over differ between epochs."""
        return self.rows // self.batch_rows

    def batches(self, start: int, prepare: Prepare) -> Iterator[np.ndarray]:
        """Yield vectors (batch_rows, d) of step `start` and all later ones, epoch after epoch, without end.

        Args:
            start: first step.
            prepare: applied to each piece as it is read.
        """
        for epoch in count(start // self.steps_per_epoch):
            done = start % self.steps_per_epoch if epoch == start // self.steps_per_epoch else 0
            windows = self._windows(epoch, done * self.batch_rows, prepare)
            yield from islice(_cut(windows, self.batch_rows), self.steps_per_epoch - done)

    def _windows(self, epoch: int, skip: int, prepare: Prepare) -> Iterator[np.ndarray]:
        """Yield the rows of the epoch in order, without the first `skip`."""
        drawn = np.random.default_rng((self._seed, epoch)).permutation(len(self._pieces))
        for first in range(0, len(drawn), WINDOW_PIECES):
            pieces = [self._pieces[number] for number in drawn[first : first + WINDOW_PIECES]]
            size = sum(rows.stop - rows.start for _, rows in pieces)
            if skip < size:
                order = np.random.default_rng((self._seed, epoch, first + 1)).permutation(size)
                yield np.concatenate([prepare(self._read(*piece)) for piece in pieces])[order[skip:]]
            skip = max(0, skip - size)

    def _read(self, number: int, rows: slice) -> np.ndarray:
        return vectors_at(self._source.open(self._units[number]), self._rows(number)[rows])

    def _rows(self, number: int) -> np.ndarray:
        """Return the rows of the unit's file that take part, ascending."""
        addresses = row_addresses(self._units[number])
        dead = self._dead.rows_of(self._units[number].ordinal)
        return np.flatnonzero(~(np.isin(row_of(addresses), dead) | np.isin(addresses, self._left_out)))


def _cut(blocks: Iterator[np.ndarray], size: int) -> Iterator[np.ndarray]:
    """Yield the rows of all blocks in batches of `size`; an incomplete batch at the end is dropped."""
    rest: np.ndarray | None = None
    for block in blocks:
        whole = block if rest is None else np.concatenate([rest, block])
        full = len(whole) - len(whole) % size
        yield from (whole[start : start + size] for start in range(0, full, size))
        rest = whole[full:].copy()
