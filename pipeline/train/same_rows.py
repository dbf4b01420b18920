"""Evaluation of a training without a dev set: the same batches before the first step and after the last."""

import math
from collections.abc import Sequence
from statistics import fmean

import torch
from torch import Tensor
from torch.nn import functional as F

from pipeline.objectives import Batch
from pipeline.text.rows.batches import Order
from pipeline.train.dev import evaluating
from pipeline.train.gather import Ranks, world_size
from pipeline.train.generators import Generators, seed_all
from pipeline.train.gradcache import loss_without_gradient
from pipeline.train.loop import Training
from pipeline.train.measures import MAX_ROWS, vector_metrics

# Enough rows that the mean loss changes more by training than by the choice of rows; takes seconds on a CPU.
_ROWS = 256


def batches_needed(order: Order, steps: int) -> int:
    """Number of batches to measure: about 256 rows, and no more batches than the training has steps."""
    return max(1, min(math.ceil(_ROWS / order.batch_rows), steps))


def measure_same_rows(training: Training, batches: Sequence[Batch]) -> dict[str, float]:
    """Mean of the loss and of the vectors' geometry over the batches, by name, in eval mode.

    Every rank has to call it with its part of each batch. Random numbers of views and masks follow from the
    seed, so that two calls differ by the weights only; the training's own generators are restored.

    Returns:
        rows: number of rows; loss, unless it depends on earlier steps; uniformity. For rows with positives
            also retrieval (percentage of rows whose positive is the nearest of the batch), alignment,
            positive_cosine and negative_cosine.
    """
    generators = Generators(training.objective)
    before = generators.state()
    try:
        seed_all(training.settings.seed, 0, Ranks().rank)
        with evaluating(training.objective):
            found = [_measure(training, batch) for batch in batches]
    finally:
        generators.restore(before)
    rows = sum(len(batch) for batch in batches) * world_size()
    return {"rows": rows, **{name: fmean(each[name] for each in found) for name in found[0]}}


def _measure(training: Training, batch: Batch) -> dict[str, float]:
    objective = training.objective
    outcome = loss_without_gradient(objective, batch, chunk_rows=training.settings.chunk_rows)
    reps = tuple(Ranks().gather(rep) for rep in outcome.reps)
    return (
        ({} if objective.has_stateful_loss else {"loss": float(outcome.loss.total)})
        | _retrieval(reps, objective.has_positive_pairs)
        | vector_metrics(reps, positives=objective.has_positive_pairs)
    )


def _retrieval(reps: Sequence[Tensor], positives: bool) -> dict[str, float]:
    """Percentage of the first 512 rows whose nearest second view is their own; empty without positives."""
    if not positives or len(reps) < 2 or len(reps[0]) < 2:
        return {}
    left, right = (F.normalize(rep[:MAX_ROWS].float(), dim=-1) for rep in reps[:2])
    nearest = (left @ right.T).argmax(dim=1)
    return {"retrieval": 100 * float((nearest == torch.arange(len(left), device=left.device)).float().mean())}
