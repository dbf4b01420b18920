"""The order in which a training meets the rows of units: one for each (seed, epoch), read in windows, so that memory does not grow with the rows."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice

import numpy as np

from pipeline.flows.rows import LiveRows, Placed, placed_rows, vectors_at
from pipeline.store.dead import Dead

PIECE_ROWS = 8_192  # rows that stand together in a unit and are read together: 12 MB at d = 384
WINDOW_PIECES = 8  # shuffled together: rows of eight places of the corpus meet, 100 MB at d = 384


@dataclass(frozen=True)
class _Piece:
    """Some of a unit's rows that take part: from number start to stop of them."""

    unit: int
    start: int
    stop: int


class RowOrder:
    """Live rows of units, those at `left_out` addresses excepted, in batches of an order that depends on units, seed and epoch alone.

    The pieces of all units are shuffled, and eight at a time become a window whose rows are shuffled; whoever starts at a later step reads no window before it.
    DataError for a file that is not the one recorded, SpaceMismatch for vectors of another space, when they are read.
    """

    def __init__(
        self, source: LiveRows, units: Sequence[Placed], left_out: np.ndarray, batch_rows: int, seed: int
    ) -> None:
        self._source, self._units, self._seed = source, units, seed
        self._left_out, self._dead = np.sort(left_out), Dead.load(source.store, source.dead)
        sizes = [len(self._rows(number)) for number in range(len(units))]
        self.rows = sum(sizes)
        self._pieces = [
            _Piece(number, start, min(start + PIECE_ROWS, size))
            for number, size in enumerate(sizes)
            for start in range(0, size, PIECE_ROWS)
        ]
        self.batch_rows = max(1, min(batch_rows, self.rows))

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches of an epoch; the rows that are left over are others in each epoch."""
        return self.rows // self.batch_rows

    def batches(self, start: int, prepare: Callable[[np.ndarray], np.ndarray]) -> Iterator[np.ndarray]:
        """Vectors (batch_rows, d) of step `start` and all later ones, epoch after epoch, without end. prepare: done to each piece as it is read."""
        for epoch in count(start // self.steps_per_epoch):
            done = start % self.steps_per_epoch if epoch == start // self.steps_per_epoch else 0
            windows = self._windows(epoch, done * self.batch_rows, prepare)
            yield from islice(_cut(windows, self.batch_rows), self.steps_per_epoch - done)

    def _windows(
        self, epoch: int, skip: int, prepare: Callable[[np.ndarray], np.ndarray]
    ) -> Iterator[np.ndarray]:
        """Rows of the epoch in order, without the first `skip`."""
        drawn = np.random.default_rng((self._seed, epoch)).permutation(len(self._pieces))
        for first in range(0, len(drawn), WINDOW_PIECES):
            pieces = [self._pieces[number] for number in drawn[first : first + WINDOW_PIECES]]
            size = sum(piece.stop - piece.start for piece in pieces)
            if skip < size:
                order = np.random.default_rng((self._seed, epoch, first + 1)).permutation(size)
                yield np.concatenate([prepare(self._read(piece)) for piece in pieces])[order[skip:]]
            skip = max(0, skip - size)

    def _read(self, piece: _Piece) -> np.ndarray:
        return vectors_at(
            self._source.open(self._units[piece.unit]), self._rows(piece.unit)[piece.start : piece.stop]
        )

    def _rows(self, number: int) -> np.ndarray:
        """Rows of the unit's file that take part, ascending."""
        addresses = placed_rows(self._units[number])
        dead = self._dead.rows_of(self._units[number].ordinal)
        return np.flatnonzero(~(np.isin(addresses & 0xFFFFFFFF, dead) | np.isin(addresses, self._left_out)))


def _cut(blocks: Iterator[np.ndarray], size: int) -> Iterator[np.ndarray]:
    """The rows of all blocks in batches of `size`; what is left at the end is dropped."""
    rest: np.ndarray | None = None
    for block in blocks:
        whole = block if rest is None else np.concatenate([rest, block])
        full = len(whole) - len(whole) % size
        yield from (whole[start : start + size] for start in range(0, full, size))
        rest = whole[full:].copy()
