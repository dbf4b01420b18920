"""Classification losses: labels of sentence pairs and masked tokens."""

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.errors import ConfigError, Defect
from pipeline.losses.checks import (
    at_least_float32,
    representations,
    require_classes,
    require_finite,
    require_proportion,
    require_rows,
    shape_error,
)

Feature = Literal["u", "v", "|u-v|", "u*v"]
FEATURES: tuple[Feature, ...] = get_args(Feature)
SBERT: tuple[Feature, ...] = ("u", "v", "|u-v|")


def pair_features(u: Tensor, v: Tensor, features: Sequence[Feature] = SBERT) -> Tensor:
    """Concatenate features of pairs of vectors, as in SBERT (Reimers & Gurevych 2019), section 3.

    Args:
        u: (N, D) vectors of the first texts.
        v: (N, D) vectors of the second texts.
        features: names of the features to use, each at most once. All four are used in InferSent (Conneau et
            al. 2017).

    Returns:
        (N, len(features) * D), the features in the order of `FEATURES` whatever the order of `features`.

    Raises:
        ConfigError: `features` is empty, or has unknown or repeated names.
    """
    if not features or len(set(features)) < len(features) or not set(features) <= set(FEATURES):
        raise ConfigError(
            "features",
            f"one or more of {', '.join(FEATURES)}, each at most once",
            ", ".join(features) or "none",
            "correct the list",
        )
    u, v = representations("pair features", u=u, v=v)
    require_rows("pair features", len(u), v=v)
    made = {"u": u, "v": v, "|u-v|": (u - v).abs(), "u*v": u * v}
    return torch.cat([made[name] for name in FEATURES if name in features], dim=1)


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
    """
    return F.cross_entropy(*_class_logits("classification", logits, labels))


def masked_lm(logits: Tensor, words: Tensor, *, total: int | None = None) -> Tensor:
    """Mean cross-entropy of predicting masked tokens (BERT, Devlin et al. 2019, section 3.1).

    As an auxiliary loss: SimCSE (Gao et al. 2021), section 4 and appendix.

    Args:
        logits: (m, V) predictions at the m masked positions.
        words: (m,) ids of the original tokens.
        total: number of masked positions in the whole batch, if this is a chunk of it; the chunks' losses
            then add up to the loss of the batch.

    Returns:
        Scalar: 0 with gradient 0 if m is 0.

    Raises:
        DataError, ModelError, Defect: as in `classification`.
    """
    if logits.dim() == 2 and not len(logits) and not len(words):
        return at_least_float32(logits).sum()
    logits, words = _class_logits("masked language model", logits, words)
    return F.cross_entropy(logits, words, reduction="sum") / (len(words) if total is None else total)


def mask_words(
    ids: np.ndarray,
    maskable: np.ndarray,
    *,
    mask_id: int,
    words: int,
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
        words: size of the vocabulary; random ids are below it.
        rng: source of randomness.
        rate: in [0, 1].

    Returns:
        The corrupted ids and a bool array of the chosen tokens, both of the shape of `ids`.

    Raises:
        ConfigError: `rate` outside [0, 1].
        Defect: shapes that differ.
    """
    require_proportion("masking rate", rate)
    if maskable.shape != ids.shape:
        raise Defect(
            "masking", f"maskable of shape {ids.shape}", str(maskable.shape), "pass one value per token"
        )
    chosen = maskable & (rng.random(ids.shape) < rate)
    fate = rng.random(ids.shape)
    masked, replaced = chosen & (fate < 0.8), chosen & (fate >= 0.8) & (fate < 0.9)
    random = rng.integers(words, size=ids.shape).astype(ids.dtype)
    return np.where(masked, np.asarray(mask_id, dtype=ids.dtype), np.where(replaced, random, ids)), chosen


def _class_logits(loss: str, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Check logits and labels; return the logits in at least float32 and the labels as int64."""
    if logits.dim() != 2 or not len(logits):
        raise shape_error(loss, "logits of shape (N, classes) with at least one row", logits)
    if labels.shape != logits.shape[:1]:
        raise shape_error(loss, f"labels of shape ({len(logits)},)", labels)
    require_classes(loss, labels, logits.shape[1])
    return require_finite(f"logits of {loss}", at_least_float32(logits)), labels.long()
