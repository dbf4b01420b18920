"""What the vectors of one step say of the space: do those that mean the same lie close, and the others apart?"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from pipeline.stats.geometry import SHARPNESS

MOST_ROWS = 512  # of a step's rows that are looked at: their products with each other cost nothing beside the encoder then


def measured(reps: Sequence[Tensor], *, positives: bool) -> dict[str, float]:
    """Alignment and uniformity (Wang & Isola 2020, alpha = 2 and t = 2), and mean cosines of positives and of negatives, by name.

    reps: vectors (n, d) of each view, without a graph; positives: whether row i of the first view and row i of the second mean the same, and no other two rows do.
    Without such pairs only uniformity comes back, and nothing of fewer than two rows. uniformity is that of the first view, which texts stand in once.
    The means are over the first 512 rows, in float32, on the device of the vectors.
    """
    if not reps or len(reps[0]) < 2:
        return {}
    left = F.normalize(reps[0][:MOST_ROWS].float(), dim=-1)
    values = {"uniformity": _uniformity(left)}
    if positives and len(reps) > 1:
        values |= _paired(left, F.normalize(reps[1][:MOST_ROWS].float(), dim=-1))
    return dict(
        zip(values, torch.stack(list(values.values())).tolist(), strict=True)
    )  # one copy from a device


def _uniformity(u: Tensor) -> Tensor:
    """log of the mean of exp(-t d^2) over pairs of different rows."""
    count = len(u)
    squares = (2 - 2 * u @ u.T).clamp(min=0)
    apart = ~torch.eye(count, dtype=torch.bool, device=u.device)
    return torch.logsumexp(-SHARPNESS * squares[apart], dim=0) - torch.log(
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
