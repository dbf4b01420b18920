"""Losses of single rows: pairs of known similarity, triplets, and pairs that are equal or not. No row sees another, so they need no gathering."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.errors import DataError
from pipeline.losses.checks import as_many, finite, misfit, positive, representations, wide


def row_cosines(left: Tensor, right: Tensor) -> Tensor:
    """(N,) cosines of row i of left (N, D) with row i of right (N, D), the product of lengths taken as at least 1e-8: 0 with a zero vector."""
    left, right = representations("cosines", left=left, right=right)
    as_many("cosines", len(left), right=right)
    lengths = torch.linalg.vector_norm(left, dim=1) * torch.linalg.vector_norm(right, dim=1)
    return (left * right).sum(dim=1) / lengths.clamp_min(1e-8)


def cosine_regression(left: Tensor, right: Tensor, scores: Tensor) -> Tensor:
    """Mean squared difference of the cosine of row i of left and right (N, D) and scores[i] (N,): the cosine that they should have, score / 5 for STS.

    DataError on scores outside [-1, 1], which no cosine reaches; ModelError on values that are not finite; Defect on shapes.
    SBERT (Reimers & Gurevych 2019), section 3, regression objective.
    """
    cosine = row_cosines(left, right)
    if scores.shape != cosine.shape:
        raise misfit("cosine regression", f"scores of shape {tuple(cosine.shape)}", scores)
    outside = ~(scores.abs() <= 1)
    if bool(outside.any()):
        found = f"{float(scores[outside][0]):g}"
        raise DataError(
            "scores of cosine regression",
            "finite numbers from -1 to 1",
            found,
            "divide them by the highest score of the scale: 5 for STS",
        )
    return F.mse_loss(cosine, scores.to(cosine.dtype))


def triplet(anchors: Tensor, positives: Tensor, negatives: Tensor, *, margin: float = 1.0) -> Tensor:
    """Mean of max(|a - p| - |a - n| + margin, 0), Euclidean and not squared; anchors, positives, negatives (N, D).

    ConfigError on a margin that is not above 0, ModelError on values that are not finite, Defect on shapes. SBERT (Reimers & Gurevych 2019), section 3.
    """
    positive("margin", margin)
    anchors, positives, negatives = representations(
        "triplet loss", anchors=anchors, positives=positives, negatives=negatives
    )
    as_many("triplet loss", len(anchors), positives=positives, negatives=negatives)
    near, far = (torch.linalg.vector_norm(anchors - others, dim=1) for others in (positives, negatives))
    return F.relu(near - far + margin).mean()


def contrastive_tension(
    first: Tensor, second: Tensor, equal: Tensor, *, reduction: Literal["mean", "sum"] = "mean"
) -> Tensor:
    """Binary cross-entropy of the inner product of row i of first and second (N, D), raw, as the logit that both encode one text.

    equal (N,) bool, or 0 and 1. reduction over the N pairs: the published learning rates go with the mean; a sum is N times that.
    DataError on other labels, ModelError on values that are not finite, Defect on shapes. Contrastive tension (Carlsson et al. 2021), eq. 1 to 3.
    """
    first, second = representations("contrastive tension", first=first, second=second)
    as_many("contrastive tension", len(first), second=second)
    return equality(
        finite("inner products of contrastive tension", (first * second).sum(dim=1)),
        equal,
        reduction=reduction,
    )


def equality(logits: Tensor, equal: Tensor, *, reduction: Literal["mean", "sum"] = "mean") -> Tensor:
    """Binary cross-entropy of logits (N,) with equal (N,), bool or 0 and 1."""
    if logits.shape != equal.shape:
        raise misfit("binary cross-entropy", f"labels of shape {tuple(logits.shape)}", equal)
    outside = (equal != 0) & (equal != 1)
    if bool(outside.any()):
        raise DataError(
            "labels of binary cross-entropy",
            "0 or 1",
            f"{float(equal[outside][0]):g}",
            "give 1 where both texts are equal, else 0",
        )
    logits = wide(logits)
    return F.binary_cross_entropy_with_logits(logits, equal.to(logits.dtype), reduction=reduction)
