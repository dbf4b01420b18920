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
    """Deal out pieces of `batch_rows` consecutive sentences of one document, in the document's order.

    The columns document and position say which rows are neighbours: the next row of the same document, with a
    position one higher. A row without a document has no neighbours. If a document does not divide into whole
    pieces, each epoch draws the row at which its first piece begins, and the remaining rows take no part in
    that epoch. Pieces are read in windows in the order of the files, and shuffled within a window.

    The settings `bucket_batches` and `repeats` have no effect, because neighbours stay together.

    Raises:
        DataError: no document is as long as a batch.
    """

    def __init__(self, pairs: TrainingRows, settings: OrderSettings) -> None:
        self._pairs, self._settings = pairs, settings
        self._lengths = lengths = _run_lengths(pairs)
        self._starts = np.cumsum(lengths) - lengths
        if not self.steps_per_epoch:
            raise DataError(
                pairs.name,
                f"a document of {settings.batch_rows:,} sentences in a row",
                f"at most {lengths.max():,}",
                "make the batch smaller, or write the rows in the order of the document",
            )

    @property
    def batch_rows(self) -> int:
        """Sentences of every batch."""
        return self._settings.batch_rows

    @property
    def steps_per_epoch(self) -> int:
        """Pieces of all documents together."""
        return int((self._lengths // self.batch_rows).sum())

    def batches(self, start: int) -> Iterator[GlobalBatch]:
        """Yield the batch of step `start` and all later ones, without end.

        Row groups before that of step `start` are not opened.
        """
        per_window = max(1, self._settings.window_rows // self.batch_rows)
        for epoch in count(start // self.steps_per_epoch):
            pieces = self._pieces(epoch)
            done = max(0, start - epoch * self.steps_per_epoch)
            first = done - done % per_window
            tables = _read_pieces(self._pairs, pieces[first:], self.batch_rows)
            for start_piece in range(first, len(pieces), per_window):
                rng = np.random.default_rng((self._settings.seed, epoch, start_piece + 1))
                yield from self._window(islice(tables, per_window), rng, skip=done - start_piece)

    def _pieces(self, epoch: int) -> np.ndarray:
        """(steps,) int64: first row of every piece, ascending."""
        rng = np.random.default_rng((self._settings.seed, epoch))
        whole = self._lengths // self.batch_rows
        first = self._starts + rng.integers(0, self._lengths - whole * self.batch_rows + 1)
        return np.concatenate(
            [start + np.arange(pieces) * self.batch_rows for start, pieces in zip(first, whole, strict=True)]
        )

    def _window(
        self, tables: Iterator[pa.Table], rng: np.random.Generator, *, skip: int
    ) -> Iterator[GlobalBatch]:
        """Yield the pieces of a window in a drawn order, without the first `skip`."""
        held = list(tables)
        order = rng.permutation(len(held))[max(0, skip) :]
        yield from (GlobalBatch(self._pairs.name, held[piece]) for piece in order)


def _run_lengths(pairs: TrainingRows) -> np.ndarray:
    """(runs,) int64: lengths of the runs of rows with one document and positions that rise by one.

    A row without a document is a run of its own.
    """
    breaks, rows = [], 0
    last: tuple[object, int] | None = None
    for table in pairs.read(pairs.spans(), ["document", "position"]):
        encoded = table["document"].combine_chunks().dictionary_encode()
        document = pc.fill_null(encoded.indices, -1).to_numpy()
        positions = table["position"].to_numpy()
        same = (np.diff(document) == 0) & (np.diff(positions) == 1) & (document[1:] >= 0)
        continues = document[0] >= 0 and (table["document"][0].as_py(), positions[0] - 1) == last
        breaks.append(rows + np.flatnonzero(~np.concatenate([[continues], same])))
        rows, last = rows + len(table), (table["document"][-1].as_py(), int(positions[-1]))
    return np.diff(np.concatenate([*breaks, [rows]]))


def _read_pieces(pairs: TrainingRows, pieces: np.ndarray, size: int) -> Iterator[pa.Table]:
    """Yield the `size` rows from each row number in `pieces` on; `pieces` ascend."""
    if not len(pieces):
        return
    held, first = None, int(pieces[0])
    blocks = pairs.read(skip_rows(pairs.spans(), first))
    for piece in pieces.tolist():
        while held is None or piece + size > first + len(held):
            block = next(blocks)
            kept = None if held is None else held.slice(min(len(held), piece - first))
            first = first if held is None or kept is None else first + len(held) - len(kept)
            held = block if kept is None else pa.concat_tables([kept, block])
        yield held.slice(piece - first, size).combine_chunks()
