"""Classification losses: classes of sentence pairs, and masked tokens."""

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.errors import ConfigError, Defect
from pipeline.losses.checks import (
    at_least_float32,
    check_aligned,
    require_classes,
    require_finite,
    require_proportion,
    shape_error,
)

Feature = Literal["u", "v", "|u-v|", "u*v"]
FEATURES: tuple[Feature, ...] = get_args(Feature)
SBERT_FEATURES: tuple[Feature, ...] = ("u", "v", "|u-v|")
"""the features of the classifier in SBERT (Reimers & Gurevych 2019)"""


def pair_features(u: Tensor, v: Tensor, features: Sequence[Feature] = SBERT_FEATURES) -> Tensor:
    """Concatenate features of pairs of vectors, as in SBERT (Reimers & Gurevych 2019), section 3.

    Args:
        u: (N, D) vectors of the first texts.
        v: (N, D) vectors of the second texts.
        features: names of the features to use, each at most once. InferSent (Conneau et al. 2017) uses all
            four.

    Returns:
        (N, len(features) * D): the features in the order of `FEATURES`, whatever the order of `features`.

    Raises:
        ConfigError: `features` is empty, or has unknown or repeated names.

    >>> pair_features(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 1.0]])).tolist()
    [[1.0, 2.0, 3.0, 1.0, 2.0, 1.0]]
    """
    if not features or len(set(features)) < len(features) or not set(features) <= set(FEATURES):
        raise ConfigError(
            "features",
            f"one or more of {', '.join(FEATURES)}, each at most once",
            ", ".join(features) or "none",
            "correct the list",
        )
    u, v = check_aligned("pair features", u=u, v=v)
    feature_values = {"u": u, "v": v, "|u-v|": (u - v).abs(), "u*v": u * v}
    return torch.cat([feature_values[name] for name in FEATURES if name in features], dim=1)


def classification(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy of class logits.

    Args:
        logits: (N, C).
        labels: (N,) class numbers from 0 to C - 1.

    Returns:
        Scalar: log C if all logits are equal.

    Raises:
        DataError: labels outside 0 to C - 1.
        ModelError: logits that are not finite.
        Defect: wrong shapes.

    >>> round(classification(torch.zeros(2, 4), torch.tensor([0, 3])).item(), 4)  # log 4
    1.3863
    """
    return F.cross_entropy(*_class_logits("classification", logits, labels))


def masked_lm(logits: Tensor, token_ids: Tensor) -> Tensor:
    """Sum of the cross-entropies of predicting masked tokens (BERT, Devlin et al. 2019, section 3.1).

    Not a mean, so that the losses of the chunks of a batch add up. SimCSE (Gao et al. 2021, section 4 and
    appendix) uses the mean as an auxiliary loss.

    Args:
        logits: (m, V) predictions at the m masked positions.
        token_ids: (m,) ids of the original tokens.

    Returns:
        Scalar: 0 with gradient 0 if m is 0.

    Raises:
        DataError, ModelError, Defect: as in `classification`.

    >>> round(masked_lm(torch.zeros(2, 4), torch.tensor([0, 3])).item(), 4)  # 2 log 4
    2.7726
    """
    if logits.dim() == 2 and not len(logits) and not len(token_ids):
        return at_least_float32(logits).sum()
    return F.cross_entropy(*_class_logits("masked language model", logits, token_ids), reduction="sum")


def mask_tokens(
    ids: np.ndarray,
    maskable: np.ndarray,
    *,
    mask_id: int,
    vocabulary_size: int,
    rng: np.random.Generator,
    rate: float = 0.15,
) -> tuple[np.ndarray, np.ndarray]:
    """Choose tokens at random and corrupt them for masked language modelling.

    Source: BERT, Devlin et al. 2019, section 3.1.

    Each maskable token is chosen independently with probability `rate`. 80 % of the chosen tokens become
    `mask_id`, 10 % a random id, 10 % stay as they are; the model has to predict all of them.

    Args:
        ids: token ids of any shape.
        maskable: bool, same shape as `ids`; False for special tokens.
        mask_id: id of the mask token.
        vocabulary_size: random ids are below it.
        rng: source of randomness.
        rate: in [0, 1].

    Returns:
        The corrupted ids and a bool array of the chosen tokens, both of the shape of `ids`.

    Raises:
        ConfigError: `rate` outside [0, 1].
        Defect: shapes that differ.

    >>> ids = np.array([2, 11, 12, 13, 3])
    >>> settings = {"mask_id": 4, "vocabulary_size": 100, "rng": np.random.default_rng(0), "rate": 1.0}
    >>> corrupted, chosen = mask_tokens(ids, ids > 10, **settings)
    >>> chosen.tolist()
    [False, True, True, True, False]
    """
    require_proportion("masking rate", rate)
    if maskable.shape != ids.shape:
        raise Defect(
            "masking", f"maskable of shape {ids.shape}", str(maskable.shape), "pass one value per token"
        )
    chosen = maskable & (rng.random(ids.shape) < rate)
    uniform = rng.random(ids.shape)
    masked, replaced = chosen & (uniform < 0.8), chosen & (uniform >= 0.8) & (uniform < 0.9)
    random_ids = rng.integers(vocabulary_size, size=ids.shape).astype(ids.dtype)
    corrupted = np.where(replaced, random_ids, ids)
    corrupted[masked] = mask_id
    return corrupted, chosen


def _class_logits(loss: str, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Check logits and labels; return the logits in at least float32 and the labels as int64."""
    if logits.dim() != 2 or not len(logits):
        raise shape_error(loss, "logits of shape (N, classes) with at least one row", logits)
    if labels.shape != logits.shape[:1]:
        raise shape_error(loss, f"labels of shape ({len(logits)},)", labels)
    require_classes(loss, labels, logits.shape[1])
    return require_finite(f"logits of {loss}", at_least_float32(logits)), labels.long()
