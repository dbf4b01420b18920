"""Losses of single rows: pairs with a similarity score, triplets, and pairs of equal or different texts.

No row is compared with another, so these losses need no vectors of other ranks.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.errors import DataError
from pipeline.losses.checks import (
    at_least_float32,
    check_aligned,
    require_finite,
    require_positive,
    require_shape,
)


def row_cosines(left: Tensor, right: Tensor) -> Tensor:
    """Return (N,) cosines of row i of left (N, D) with row i of right (N, D).

    The product of the norms counts as at least 1e-8, so that a zero vector has cosine 0.
    """
    left, right = check_aligned("cosines", left=left, right=right)
    norms = torch.linalg.vector_norm(left, dim=1) * torch.linalg.vector_norm(right, dim=1)
    return (left * right).sum(dim=1) / norms.clamp_min(1e-8)


def cosine_regression(left: Tensor, right: Tensor, scores: Tensor) -> Tensor:
    """Mean squared error between the cosines of pairs and their scores.

    Source: SBERT, Reimers & Gurevych 2019, section 3, regression objective. For scores that a layer predicts
    use `score_regression`.

    Args:
        left: (N, D) vectors of the first texts.
        right: (N, D) vectors of the second texts.
        scores: (N,) target cosines in [-1, 1]: score / 5 for STS.

    Raises:
        DataError: scores outside [-1, 1].
        ModelError: values that are not finite.
        Defect: wrong shapes.

    >>> cosine_regression(torch.eye(2), torch.eye(2), torch.tensor([1.0, 0.5])).item()
    0.125
    """
    cosine = row_cosines(left, right)
    require_shape("cosine regression", "scores", scores, *cosine.shape)
    outside = ~(scores.abs() <= 1)
    if bool(outside.any()):
        raise DataError(
            "scores of cosine regression",
            "finite numbers from -1 to 1",
            f"{float(scores[outside][0]):g}",
            "divide them by the maximum of the scale: 5 for STS",
        )
    return F.mse_loss(cosine, scores.to(cosine.dtype))


def score_regression(predictions: Tensor, scores: Tensor) -> Tensor:
    """Mean squared error of predicted scores (BERT on STS-B, Devlin et al. 2019).

    For scores that cosines have to match use `cosine_regression`.

    Args:
        predictions: (N,).
        scores: (N,) on any scale.

    Raises:
        ModelError: predictions that are not finite.
        Defect: wrong shapes.
    """
    require_shape("score regression", "scores", scores, *predictions.shape)
    predictions = require_finite("predictions of score regression", at_least_float32(predictions))
    return F.mse_loss(predictions, scores.to(predictions.dtype))


def triplet(anchors: Tensor, positives: Tensor, negatives: Tensor, *, margin: float = 1.0) -> Tensor:
    """Mean of max(|a - p| - |a - n| + margin, 0), Euclidean, not squared.

    Source: SBERT, Reimers & Gurevych 2019, section 3. To use the other rows as further negatives, use
    `info_nce`.

    Args:
        anchors: (N, D).
        positives: (N, D).
        negatives: (N, D).
        margin: > 0.

    Raises:
        ConfigError: a margin that is not above 0.
        ModelError: values that are not finite.
        Defect: wrong shapes.

    >>> anchors, positives = torch.zeros(1, 2), torch.tensor([[3.0, 4.0]])
    >>> triplet(anchors, positives, torch.tensor([[0.0, 2.0]])).item()  # 5 - 2 + 1
    4.0
    >>> triplet(anchors, positives, torch.tensor([[0.0, 8.0]])).item()
    0.0
    """
    require_positive("margin", margin)
    anchors, positives, negatives = check_aligned(
        "triplet loss", anchors=anchors, positives=positives, negatives=negatives
    )
    positive_distances = torch.linalg.vector_norm(anchors - positives, dim=1)
    negative_distances = torch.linalg.vector_norm(anchors - negatives, dim=1)
    return F.relu(positive_distances - negative_distances + margin).mean()


def contrastive_tension(
    first: Tensor, second: Tensor, equal: Tensor, *, reduction: Literal["mean", "sum"] = "mean"
) -> Tensor:
    """Binary cross-entropy of predicting that two encoders read the same text (Carlsson et al. 2021).

    The logit of a pair is the raw inner product of its two vectors (eq. 1 to 3 of the paper). For cosines and
    many candidates of each row use `info_nce`.

    Args:
        first: (N, D) vectors of one encoder.
        second: (N, D) vectors of the other encoder.
        equal: (N,) bool, or 0 and 1: True if both encoders read the same text in row i.
        reduction: mean or sum over the N pairs. The published learning rates belong to the mean.

    Raises:
        DataError: labels other than 0 and 1.
        ModelError: values that are not finite.
        Defect: wrong shapes.

    >>> first = torch.tensor([[1.0, 0.0]])
    >>> second = torch.tensor([[0.0, 1.0]])
    >>> round(contrastive_tension(first, second, torch.tensor([True])).item(), 4)  # log 2
    0.6931
    """
    first, second = check_aligned("contrastive tension", first=first, second=second)
    logits = require_finite("inner products of contrastive tension", (first * second).sum(dim=1))
    require_shape("contrastive tension", "labels", equal, len(logits))
    outside = (equal != 0) & (equal != 1)
    if bool(outside.any()):
        raise DataError(
            "labels of contrastive tension",
            "0 or 1",
            f"{float(equal[outside][0]):g}",
            "use 1 if both texts are equal, else 0",
        )
    return F.binary_cross_entropy_with_logits(logits, equal.to(logits.dtype), reduction=reduction)
