"""A random sample of training rows, for a plan: it reads a bounded number of rows, however many there are."""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from pipeline.text.rows.row_groups import Span
from pipeline.text.rows.training_rows import TrainingRows

_MAX_GROUPS = 32  # row groups, each opened once: a few seconds at most for files in S3
_MAX_READ = 1 << 20  # rows: all rows of one row group of pyarrow's default size; less than a second


def sample_rows(
    training_rows: TrainingRows, roles: Sequence[str], size: int, seed: int
) -> Iterator[pa.Table]:
    """Yield a random sample of the rows, piece by piece, in the order of the files.

    If there are more than 32 row groups, the sample is from 32 of them, drawn at random; a row group gives
    rows in proportion to its size. The rows of large row groups are drawn from their first rows only, so that
    at most 2**20 rows are read, or `size` rows of each of the row groups. At most one piece of the files is
    in memory.

    Args:
        training_rows: the rows.
        roles: columns to read.
        size: number of rows to sample; if the chosen row groups have fewer, all of them.
        seed: seed of the draws.

    Raises:
        DataError: as in `TrainingRows.read`.
    """
    rng, spans = np.random.default_rng(seed), training_rows.spans()
    spans = [spans[number] for number in np.sort(rng.permutation(len(spans))[:_MAX_GROUPS])]
    ends = np.cumsum([len(span) for span in spans])
    drawn = rng.choice(ends[-1], min(size, ends[-1]), replace=False)
    counts = np.bincount(np.searchsorted(ends, drawn, side="right"), minlength=len(spans))
    max_read = max(size, _MAX_READ // len(spans))
    for span, count in zip(spans, counts, strict=True):
        if count:
            positions = np.sort(rng.choice(min(len(span), max_read), count, replace=False))
            yield from _take(training_rows, span, positions, roles)


def _take(
    training_rows: TrainingRows, span: Span, positions: np.ndarray, roles: Sequence[str]
) -> Iterator[pa.Table]:
    """Yield the rows at these ascending positions of a span, piece by piece."""
    rows_read = 0
    for piece in training_rows.read([Span(span.group, span.start, span.start + positions[-1] + 1)], roles):
        first, end = np.searchsorted(positions, (rows_read, rows_read + len(piece)))
        yield piece.take(positions[first:end] - rows_read)
        rows_read += len(piece)
