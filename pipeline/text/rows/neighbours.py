"""Batches of neighbouring sentences: each is a piece of one document, from one sentence on."""

from collections.abc import Iterator
from itertools import count

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import DataError
from pipeline.settings.training import OrderSettings
from pipeline.text.rows.batches import GlobalBatch
from pipeline.text.rows.order import without_first
from pipeline.text.rows.pairs import Pairs


class NeighbourOrder:
    """Pieces of `batch_rows` sentences that follow each other in a document, in its order. Windows are read in the files' order, their pieces shuffled for each epoch.

    The columns document and position say what follows what: a position one higher, in the next row; a row of no document has no neighbours. Where a document does not
    divide into whole pieces the first one begins at a row drawn for each epoch, and what is left over takes no part. DataError where no document is as long as a batch.
    `bucket_batches` and `repeats` of the settings have no meaning here: neighbours stay together.
    """

    def __init__(self, pairs: Pairs, settings: OrderSettings) -> None:
        self._pairs, self._settings = pairs, settings
        lengths = _runs(pairs)
        self._starts = np.cumsum(lengths) - lengths
        self._lengths = lengths
        if not self.steps_per_epoch:
            remedy = "make the batch smaller, or see that rows stand in the document's order"
            raise DataError(
                pairs.name,
                f"a document of {settings.batch_rows:,} sentences in a row",
                f"at most {lengths.max():,}",
                remedy,
            )

    @property
    def batch_rows(self) -> int:
        return self._settings.batch_rows

    @property
    def steps_per_epoch(self) -> int:
        return int((self._lengths // self.batch_rows).sum())

    @property
    def left_over(self) -> int:
        """Rows of an epoch that are in no batch."""
        return len(self._pairs) - self.steps_per_epoch * self.batch_rows

    def batches(self, start: int) -> Iterator[GlobalBatch]:
        """That of step `start` and all later ones, without end. Of the row groups before that of step `start` none is opened."""
        per_window = max(1, self._settings.window_rows // self.batch_rows)
        for epoch in count(start // self.steps_per_epoch):
            pieces = self._pieces(epoch)
            done = max(0, start - epoch * self.steps_per_epoch)
            first = done - done % per_window
            tables = _read(self._pairs, pieces[first:], self.batch_rows)
            for place in range(first, len(pieces), per_window):
                yield from self._window(
                    tables, min(per_window, len(pieces) - place), (epoch, place), done - place
                )

    def _pieces(self, epoch: int) -> np.ndarray:
        """(steps,) int64 first row of every piece, ascending."""
        rng = np.random.default_rng((self._settings.seed, epoch))
        whole = self._lengths // self.batch_rows
        first = self._starts + rng.integers(0, self._lengths - whole * self.batch_rows + 1)
        return np.concatenate(
            [start + np.arange(pieces) * self.batch_rows for start, pieces in zip(first, whole, strict=True)]
        )

    def _window(
        self, tables: Iterator[pa.Table], size: int, place: tuple[int, int], skip: int
    ) -> Iterator[GlobalBatch]:
        """The next `size` pieces in the window's order, without the first `skip`."""
        held = [next(tables) for _ in range(size)]
        order = np.random.default_rng((self._settings.seed, place[0], place[1] + 1)).permutation(size)
        yield from (GlobalBatch(self._pairs.name, held[piece]) for piece in order[max(0, skip) :])


def _runs(pairs: Pairs) -> np.ndarray:
    """(runs,) int64: how many rows, one run after the other, have one document and positions that rise by one; 1 for a row of no document."""
    breaks, rows = [], 0
    last: tuple[object, int] | None = None
    for table in pairs.read(pairs.spans(), ["document", "position"]):
        place = pc.fill_null(table["document"].combine_chunks().dictionary_encode().indices, -1).to_numpy()
        positions = table["position"].to_numpy()
        same = (np.diff(place) == 0) & (np.diff(positions) == 1) & (place[1:] >= 0)
        goes_on = place[0] >= 0 and (table["document"][0].as_py(), positions[0] - 1) == last
        breaks.append(rows + np.flatnonzero(~np.concatenate([[goes_on], same])))
        rows, last = rows + len(table), (table["document"][-1].as_py(), int(positions[-1]))
    return np.diff(np.concatenate([*breaks, [rows]]))


def _read(pairs: Pairs, pieces: np.ndarray, size: int) -> Iterator[pa.Table]:
    """The `size` rows from each of the ascending rows `pieces` on."""
    if not len(pieces):
        return
    held, first = None, int(pieces[0])
    blocks = pairs.read(without_first(pairs.spans(), first))
    for piece in pieces.tolist():
        while held is None or piece + size > first + len(held):
            block = next(blocks)
            kept = None if held is None else held.slice(min(len(held), piece - first))
            first = first if held is None or kept is None else first + len(held) - len(kept)
            held = block if kept is None else pa.concat_tables([kept, block])
        yield held.slice(piece - first, size).combine_chunks()
