"""Geometry of the vectors of one step: alignment, uniformity and cosines."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from pipeline.stats.geometry import SHARPNESS

MOST_ROWS = 512  # rows of a step that are used; their inner products cost little compared with the encoder


def vector_metrics(reps: Sequence[Tensor], *, positives: bool) -> dict[str, float]:
    """Alignment and uniformity (Wang & Isola 2020, alpha = 2 and t = 2), and mean cosines, by name.

    The means are over the first 512 rows, in float32, on the device of the vectors.

    Args:
        reps: vectors (n, d) of each view, without a graph.
        positives: row i of the first view and row i of the second mean the same, other rows do not. If False,
            only
            uniformity is returned.

    Returns:
        uniformity of the first view, alignment, positive_cosine and negative_cosine; nothing for fewer than
            two rows.
    """
    if not reps or len(reps[0]) < 2:
        return {}
    left = F.normalize(reps[0][:MOST_ROWS].float(), dim=-1)
    values = {"uniformity": _uniformity(left)}
    if positives and len(reps) > 1:
        values |= _paired(left, F.normalize(reps[1][:MOST_ROWS].float(), dim=-1))
    found = torch.stack(list(values.values())).tolist()  # one copy from the device
    return dict(zip(values, found, strict=True))


def _uniformity(u: Tensor) -> Tensor:
    """Logarithm of the mean of exp(-t d^2) over pairs of different rows."""
    count = len(u)
    squares = (2 - 2 * u @ u.T).clamp(min=0)
    different = ~torch.eye(count, dtype=torch.bool, device=u.device)
    return torch.logsumexp(-SHARPNESS * squares[different], dim=0) - torch.log(
        u.new_tensor(count * (count - 1.0))
    )


def _paired(left: Tensor, right: Tensor) -> dict[str, Tensor]:
    cosines, count = left @ right.T, len(left)
    own = cosines.diagonal()
    return {
        "alignment": (2 - 2 * own).clamp(min=0).mean(),
        "positive_cosine": own.mean(),
        "negative_cosine": (cosines.sum() - own.sum()) / (count * (count - 1)),
    }
