"""What is told of a training: one record for every few steps."""

from collections.abc import Mapping, Sequence

from pipeline.config import Settings


class Figures(Settings):
    """Means over the steps since the record before, up to and with `step`; what was not measured is None, and then in no line of the file.

    Of vectors, alignment, uniformity and cosines are those of the first rank's rows, as the encoder gave them to the step: with dropout, and without any head of the
    objective. Only objectives whose first two views mean the same have the first and the last two of these.
    """

    step: int
    """0: before the first one"""
    epoch: float
    """passes over the rows"""
    loss: float | None = None
    parts: Mapping[str, float] = {}
    """of the loss, by name"""
    gradient_norm: float | None = None
    """before it was clipped"""
    learning_rate: float | None = None
    """of the last step"""
    alignment: float | None = None
    """mean squared distance of normalised vectors that mean the same, in [0, 4]; lower is better"""
    uniformity: float | None = None
    """log of the mean of exp(-2 d^2) over pairs of different rows, in [-8, 0]; lower is better"""
    positive_cosine: float | None = None
    """of vectors that mean the same"""
    negative_cosine: float | None = None
    """of first views with the second views of other rows"""
    tokens_per_s: float | None = None
    """of all ranks, waiting included"""
    rows_per_s: float | None = None
    waiting: float | None = None
    """share of the time in which the first rank had no batch, 0 to 1"""
    counts: Mapping[str, int] = {}
    """repeated, exchanged, blank, overflows: sums over the steps"""
    rows: int = 0
    """of all ranks, in these steps"""
    seconds: float = 0.0
    """that these steps took, without measurements and checkpoints"""
    memory_bytes: int | None = None
    """the most that the first rank's GPU has held so far"""
    same_rows: Mapping[str, float] = {}
    """of a training without dev, before the first step and after the last: loss, retrieval, alignment,
    uniformity and cosines of the same batches without dropout, and how many rows these have"""
    dev: float | None = None
    """Spearman x100 after `step`"""
    resumed: int = 0
    """times that the training was begun anew from here"""


def totals(lines: Sequence[Figures]) -> dict[str, int]:
    """Counts of all lines together."""
    names = dict.fromkeys(name for line in lines for name in line.counts)
    return {name: sum(line.counts.get(name, 0) for line in lines) for name in names}
