"""Metrics of a training: one record for every few steps."""

from collections.abc import Mapping

from pipeline.config import Settings


class MetricsLine(Settings):
    """Means over the steps since the previous record, up to and including `step`.

    Metrics that were not measured are None and are omitted from metrics.jsonl. Alignment, uniformity and
    cosines are those of the first rank's rows, as encoded in the step: with dropout, and without the
    objective's heads. Alignment and cosines need an objective whose first two
    views have the same meaning.
    """

    step: int
    """number of the last step; 0 before the first"""
    epoch: float
    """number of passes over the rows"""
    loss: float | None = None
    parts: Mapping[str, float] = {}
    """parts of the loss, by name"""
    gradient_norm: float | None = None
    """before clipping"""
    learning_rate: float | None = None
    """learning rate of the last step"""
    alignment: float | None = None
    """mean squared distance of normalized vectors with the same meaning, in [0, 4]; lower is better"""
    uniformity: float | None = None
    """log of the mean of exp(-2 d^2) over pairs of different rows, in [-8, 0]; lower is better"""
    positive_cosine: float | None = None
    """mean cosine of vectors with the same meaning"""
    negative_cosine: float | None = None
    """mean cosine of first views with the second views of other rows"""
    tokens_per_s: float | None = None
    """tokens per second on all ranks, including waiting"""
    rows_per_s: float | None = None
    waiting: float | None = None
    """proportion of the time in which the first rank waited for a batch"""
    counts: Mapping[str, int] = {}
    """sums over the steps of `Batch.counts` (repeated, exchanged, blank), and of steps with overflows in half
    precision"""
    rows: int = 0
    """number of rows of these steps, on all ranks"""
    seconds: float = 0.0
    """duration of these steps, without evaluation and checkpoints"""
    memory_bytes: int | None = None
    """peak memory of the first rank's GPU so far"""
    same_rows: Mapping[str, float] = {}
    """metrics of a fixed set of rows without dropout: number of rows, loss, retrieval, alignment, uniformity,
    cosines. Measured before the first step and after the last, if there is no dev set."""
    dev: float | None = None
    """score on dev after `step`, times 100"""
    resumed: int = 0
    """number of times that the training was resumed here"""
