"""Geometry of the vectors of a step, and, without a dev set, of fixed rows before and after the training."""

import math
from collections.abc import Sequence
from itertools import chain
from statistics import fmean

import torch
from torch import Tensor
from torch.nn import functional as F

from pipeline.objectives import Batch, KeepsState
from pipeline.stats.geometry import SHARPNESS
from pipeline.text.rows.batches import Order
from pipeline.train.dev import evaluating
from pipeline.train.gather import Ranks, world_size
from pipeline.train.generators import RandomGenerators, seed_all
from pipeline.train.gradcache import loss_without_gradient
from pipeline.train.loop import Training

MAX_ROWS = 512  # rows of a step; their inner products cost little compared with the encoder


def vector_metrics(reps: Sequence[Tensor], *, positives: bool) -> dict[str, float]:
    """Compute alignment and uniformity (Wang & Isola 2020, alpha = 2 and t = 2), and mean cosines, by name.

    The means are over the first 512 rows, in float32, on the device of the vectors.

    Args:
        reps: vectors (n, d) of each view, without a graph.
        positives: True if row i of the first view and row i of the second mean the same, and other rows do
            not. If False, only uniformity is returned.

    Returns:
        "uniformity" of the first view; "alignment" and "positive_cosine" of rows with their positives;
        "negative_cosine" of rows with the second views of other rows. Empty for fewer than two rows.
    """
    if not reps or len(reps[0]) < 2:
        return {}
    left, *others = (F.normalize(rep[:MAX_ROWS].float(), dim=-1) for rep in reps[:2])
    count = len(left)
    squared_distances = (2 - 2 * left @ left.T).clamp(min=0)
    off_diagonal = ~torch.eye(count, dtype=torch.bool, device=left.device)
    log_pairs = torch.log(left.new_tensor(count * (count - 1.0)))
    log_sum = torch.logsumexp(-SHARPNESS * squared_distances[off_diagonal], dim=0)
    values = {"uniformity": log_sum - log_pairs}
    if positives and others:
        cosines = left @ others[0].T
        positive_cosines = cosines.diagonal()
        values |= {
            "alignment": (2 - 2 * positive_cosines).clamp(min=0).mean(),
            "positive_cosine": positive_cosines.mean(),
            "negative_cosine": (cosines.sum() - positive_cosines.sum()) / (count * (count - 1)),
        }
    # One copy from the device for all values.
    return dict(zip(values, torch.stack(list(values.values())).tolist(), strict=True))


_ROWS = 256  # enough for a stable mean of the loss, and encoded within seconds on a CPU


def batches_needed(order: Order, steps: int) -> int:
    """Return the number of batches to measure: about 256 rows, but at most one batch per step."""
    return max(1, min(math.ceil(_ROWS / order.batch_rows), steps))


def measure_same_rows(training: Training, batches: Sequence[Batch]) -> dict[str, float]:
    """Compute the mean of the loss and of geometric metrics over the batches, by name, in eval mode.

    Every rank has to call it with its part of each batch. The random numbers of views and masks follow from
    the seed, so that two calls differ by the weights only; torch's generators are restored afterwards.

    Returns:
        "rows", the number of rows; "loss", unless it depends on earlier steps; "uniformity", unless no batch
        has vectors. If the objective has positive pairs also "retrieval" (percentage of rows whose nearest
        second view in the batch is their own), "alignment", "positive_cosine" and "negative_cosine".
    """
    generators = RandomGenerators(training.objective)
    random_state = generators.state()
    try:
        seed_all(training.settings.seed, 0, Ranks().rank)
        with evaluating(training.objective):
            metrics = [_measure(training, batch) for batch in batches]
    finally:
        generators.restore(random_state)
    rows = sum(len(batch) for batch in batches) * world_size()
    # In multi-task training, batches of different sources may have different metrics.
    values: dict[str, list[float]] = {}
    for name, value in chain.from_iterable(batch_metrics.items() for batch_metrics in metrics):
        values.setdefault(name, []).append(value)
    return {"rows": rows, **{name: fmean(of_batches) for name, of_batches in values.items()}}


def _measure(training: Training, batch: Batch) -> dict[str, float]:
    """Compute the metrics of one batch, over all ranks."""
    objective = training.objective
    settings = training.settings
    result = loss_without_gradient(
        objective, batch, chunk_rows=settings.chunk_rows, chunk_tokens=settings.chunk_tokens
    )
    reps = tuple(Ranks().gather(rep) for rep in result.reps)
    has_state = any(isinstance(part, KeepsState) for part in objective.parts)
    return (
        ({} if has_state else {"loss": float(result.loss.total)})
        | _retrieval(reps, objective.has_positive_pairs)
        | vector_metrics(reps, positives=objective.has_positive_pairs)
    )


def _retrieval(reps: Sequence[Tensor], has_positives: bool) -> dict[str, float]:
    """Return the percentage of the first 512 rows whose nearest second view is their own.

    Empty without positives.
    """
    if not has_positives or len(reps) < 2 or len(reps[0]) < 2:
        return {}
    left, right = (F.normalize(rep[:MAX_ROWS].float(), dim=-1) for rep in reps[:2])
    nearest = (left @ right.T).argmax(dim=1)
    is_own = nearest == torch.arange(len(left), device=left.device)
    return {"retrieval": 100 * float(is_own.float().mean())}
