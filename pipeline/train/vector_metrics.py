"""Geometry of the vectors of one step: alignment, uniformity and cosines."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from pipeline.stats.geometry import SHARPNESS

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
