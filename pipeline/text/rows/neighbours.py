"""Batches of neighbouring sentences: each batch is a piece of the sequence of all documents."""

from collections.abc import Iterator
from itertools import count, islice

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import DataError
from pipeline.log import announce
from pipeline.settings.training import OrderSettings
from pipeline.text.formats.reject_rows import rechunk
from pipeline.text.rows.batches import GlobalBatch
from pipeline.text.rows.order import skip_rows
from pipeline.text.rows.row_groups import Span
from pipeline.text.rows.training_rows import TrainingRows


class NeighbourOrder:
    """Yield batches that are pieces of `batch_rows` consecutive sentences, in the order of the files.

    Two consecutive rows are neighbours if they have the same document and the second one's position is one
    higher. Documents follow each other in a batch, as in QuickThoughts (Logeswaran & Lee 2018), so that
    documents shorter than a batch are trained on, too; the loss knows where a document ends. Rows without a
    neighbour, such as rows without a document, are left out. Each epoch draws the row at which the first
    piece begins; fewer than `batch_rows` rows before and after the pieces take no part in that epoch. Pieces
    are read in windows, and shuffled within a window.

    The settings `bucket_batches` and `repeats` have no effect, because they would separate neighbours.

    Raises:
        DataError: too few rows have a neighbour to fill a batch.
    """

    def __init__(self, training_rows: TrainingRows, settings: OrderSettings) -> None:
        self._training_rows, self._settings = training_rows, settings
        self._has_neighbour = _has_neighbour(training_rows)
        self._rows = int(self._has_neighbour.sum())
        if not self.steps_per_epoch:
            raise DataError(
                training_rows.name,
                f"the {settings.batch_rows:,} rows of a batch, each next to a sentence of its document",
                f"{self._rows:,}",
                "give more rows, make the batch smaller, or write the rows in the order of the documents",
            )
        if self._rows < len(training_rows):
            announce(
                f"{training_rows.name}: {self._rows:,} of {len(training_rows):,} sentences are next to one "
                "of their document; the others are left out"
            )

    @property
    def batch_rows(self) -> int:
        """Sentences of every batch."""
        return self._settings.batch_rows

    @property
    def steps_per_epoch(self) -> int:
        """Complete pieces of an epoch."""
        return self._rows // self.batch_rows

    def batches(self, start: int) -> Iterator[GlobalBatch]:
        """Yield the batch of step `start` and all later ones, without end.

        Row groups before the window of step `start` are not opened.
        """
        window_pieces = max(1, self._settings.window_rows // self.batch_rows)
        for epoch in count(start // self.steps_per_epoch):
            done = max(0, start - epoch * self.steps_per_epoch)
            window_start = done - done % window_pieces
            pieces = self._read_pieces(self._first_row(epoch), window_start)
            while window := list(islice(pieces, window_pieces)):
                rng = np.random.default_rng((self._settings.seed, epoch, window_start + 1))
                for number in rng.permutation(len(window))[max(0, done - window_start) :]:
                    yield GlobalBatch(self._training_rows.name, window[number])
                window_start += len(window)
                window.clear()  # frees these rows before the next window is read

    def _first_row(self, epoch: int) -> int:
        """Draw the number of the first row of the epoch's first piece, among the rows with a neighbour."""
        rng = np.random.default_rng((self._settings.seed, epoch))
        return int(rng.integers(self._rows - self.steps_per_epoch * self.batch_rows + 1))

    def _read_pieces(self, first: int, done: int) -> Iterator[pa.Table]:
        """Yield the pieces of an epoch that begins at row `first`, without the first `done` pieces."""
        kept = np.flatnonzero(self._has_neighbour)[first + done * self.batch_rows :]
        if not len(kept):
            return
        start = int(kept[0])
        spans = skip_rows(self._training_rows.spans(), start)
        pieces = rechunk(self._read_kept(spans, start), self.batch_rows)
        yield from islice(pieces, self.steps_per_epoch - done)

    def _read_kept(self, spans: list[Span], start: int) -> Iterator[pa.Table]:
        """Read the rows with a neighbour from spans that begin at row `start` of all rows."""
        for table in self._training_rows.read(spans):
            yield table.filter(pa.array(self._has_neighbour[start : start + len(table)]))
            start += len(table)


def _has_neighbour(training_rows: TrainingRows) -> np.ndarray:
    """(rows,) bool: the previous or the next row is of the same document, at the position before or after."""
    follows = [np.zeros(0, bool)]  # for each row, whether it follows the previous one
    previous: tuple[object, int] | None = None  # document and position of the last row of the previous table
    for table in training_rows.read(training_rows.spans(), ["document", "position"]):
        documents, positions = table["document"], table["position"]
        first = documents[0].as_py()
        is_first_neighbour = first is not None and (first, positions[0].as_py() - 1) == previous
        follows.append(np.concatenate([[is_first_neighbour], follow_each_other(table)]))
        previous = documents[-1].as_py(), positions[-1].as_py()
    is_followed = np.concatenate([*follows, [False]])
    return is_followed[:-1] | is_followed[1:]


def follow_each_other(table: pa.Table) -> np.ndarray:
    """(rows - 1,) bool: row i + 1 is of the same document as row i, at the next position."""
    documents, positions = table["document"].combine_chunks(), table["position"].to_numpy()
    codes = pc.fill_null(documents.dictionary_encode().indices, -1).to_numpy()
    return np.asarray((np.diff(codes) == 0) & (np.diff(positions) == 1) & (codes[1:] >= 0))
