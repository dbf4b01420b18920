"""Geometry of the vectors of one step: alignment, uniformity and cosines."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from pipeline.stats.geometry import SHARPNESS

MAX_ROWS = 512  # of a step; their inner products cost little compared with the encoder


def vector_metrics(reps: Sequence[Tensor], *, positives: bool) -> dict[str, float]:
    """Return alignment and uniformity (Wang & Isola 2020, alpha = 2 and t = 2), and mean cosines, by name.

    The means are over the first 512 rows, in float32, on the device of the vectors.

    Args:
        reps: vectors (n, d) of each view, without a graph.
        positives: row i of the first view and row i of the second mean the same, other rows do not. If False,
            only uniformity is returned.

    Returns:
        uniformity of the first view, alignment, positive_cosine and negative_cosine; nothing for fewer than
            two rows.
    """
    if not reps or len(reps[0]) < 2:
        return {}
    left, *others = (F.normalize(rep[:MAX_ROWS].float(), dim=-1) for rep in reps[:2])
    count = len(left)
    squares = (2 - 2 * left @ left.T).clamp(min=0)
    different = ~torch.eye(count, dtype=torch.bool, device=left.device)
    pairs = torch.log(left.new_tensor(count * (count - 1.0)))
    values = {"uniformity": torch.logsumexp(-SHARPNESS * squares[different], dim=0) - pairs}
    if positives and others:
        cosines = left @ others[0].T
        own = cosines.diagonal()
        values |= {
            "alignment": (2 - 2 * own).clamp(min=0).mean(),
            "positive_cosine": own.mean(),
            "negative_cosine": (cosines.sum() - own.sum()) / (count * (count - 1)),
        }
    # one copy from the device
    return dict(zip(values, torch.stack(list(values.values())).tolist(), strict=True))
