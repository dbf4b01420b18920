"""One line of a training's metrics file: metrics of a few consecutive steps."""

from collections.abc import Mapping

from pipeline.config import Settings


class MetricsLine(Settings):
    """Means over the steps after the previous line, up to and including `step`.

    Metrics that were not measured are None and are omitted from metrics.jsonl. Alignment, uniformity and
    cosines are measured on the first rank's vectors as encoded in the steps, with dropout and without the
    objective's heads. Alignment and cosines are measured only if the objective has positive pairs (see
    `Objective.has_positive_pairs`).
    """

    step: int
    """number of the last step; 0 before the first"""
    epoch: float
    """number of passes over the rows"""
    loss: float | None = None
    parts: Mapping[str, float] = {}
    """parts of the loss, by name"""
    gradient_norm: float | None = None
    """norm of the gradient before clipping"""
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
    """tokens of all ranks per second; waiting for batches counts as time"""
    rows_per_s: float | None = None
    """rows of all ranks per second; waiting for batches counts as time"""
    waiting: float | None = None
    """proportion of the time in which the first rank waited for a batch"""
    counts: Mapping[str, int] = {}
    """sums over the steps: rows that repeat a text of their batch (repeated), rows moved to another batch for
    this reason (exchanged), texts without a word (blank), hard negatives without a word
    (without_negative), halvings of the loss scale in float16 (overflows)"""
    rows: int = 0
    """number of rows of these steps, on all ranks"""
    seconds: float = 0.0
    """duration of these steps, without evaluation and checkpoints"""
    memory_bytes: int | None = None
    """peak memory of the first rank's GPU so far"""
    same_rows: Mapping[str, float] = {}
    """metrics by name on one fixed set of rows, without dropout: rows (their number), loss, retrieval,
    alignment, uniformity, positive_cosine, negative_cosine. Without a dev set they are measured before the
    first step and after the last."""
    dev: float | None = None
    """score on dev after `step`: `train.dev.measure`, times 100 unless it is log_likelihood"""
    dev_geometry: Mapping[str, float] = {}
    """alignment and uniformity by name, of the trained model's vectors on dev after `step`; see
    `DevMetrics`"""
    resumed: int = 0
    """number of times that the training was resumed after `step`"""
