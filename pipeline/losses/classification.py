"""Losses over classes: pairs of sentences classified by their two vectors, and words behind masks."""

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.errors import ConfigError, Defect
from pipeline.losses.checks import as_many, classes, finite, misfit, representations, share, wide

Feature = Literal["u", "v", "|u-v|", "u*v"]
FEATURES: tuple[Feature, ...] = get_args(Feature)
SBERT: tuple[Feature, ...] = ("u", "v", "|u-v|")


def pair_features(u: Tensor, v: Tensor, features: Sequence[Feature] = SBERT) -> Tensor:
    """(N, number of features x D) side by side: of u, v, |u - v| and u * v those that are named, in this order however they are named.

    u, v (N, D). ConfigError on none, an unknown or a doubled name. SBERT (Reimers & Gurevych 2019), section 3; all four: InferSent (Conneau et al. 2017).
    """
    if not features or len(set(features)) < len(features) or not set(features) <= set(FEATURES):
        raise ConfigError(
            "features",
            f"some of {', '.join(FEATURES)}, each once",
            ", ".join(features) or "none",
            "correct the list",
        )
    u, v = representations("pair features", u=u, v=v)
    as_many("pair features", len(u), v=v)
    made = {"u": u, "v": v, "|u-v|": (u - v).abs(), "u*v": u * v}
    return torch.cat([made[name] for name in FEATURES if name in features], dim=1)


def classification(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy of logits (N, C), formed from pair features or otherwise, with class numbers labels (N,): log C when all classes are alike.

    DataError on labels outside 0 to C - 1, ModelError on logits that are not finite, Defect on shapes.
    """
    return F.cross_entropy(*_class_logits("classification", logits, labels))


def masked_lm(logits: Tensor, words: Tensor, *, total: int | None = None) -> Tensor:
    """Mean cross-entropy of logits (m, V) at the m masked positions with the words (m,) that stood there; 0, with gradient 0, where m is 0.

    total: masked positions of the whole batch where this is a chunk of it, so that the chunks' losses add up to that of the batch. Errors as in
    `classification`. BERT (Devlin et al. 2019), section 3.1; as an auxiliary term: SimCSE (Gao et al. 2021), section 4 and appendix.
    """
    if logits.dim() == 2 and not len(logits) and not len(words):
        return wide(logits).sum()
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
    """Corrupted ids and chosen (bool), both of the shape of `ids`: each maskable token is chosen with probability `rate`, on its own.

    Of the chosen ones 80 % become mask_id, 10 % a random id below `words` (the size of the vocabulary), 10 % stay: the model must predict all of them.
    maskable: bool, false for special tokens. ConfigError on a rate outside [0, 1], Defect on shapes. BERT (Devlin et al. 2019), section 3.1.
    """
    share("masking rate", rate)
    if maskable.shape != ids.shape:
        raise Defect("masking", f"marks of shape {ids.shape}", str(maskable.shape), "mark every token")
    chosen = maskable & (rng.random(ids.shape) < rate)
    fate = rng.random(ids.shape)
    masked, replaced = chosen & (fate < 0.8), chosen & (fate >= 0.8) & (fate < 0.9)
    random = rng.integers(words, size=ids.shape).astype(ids.dtype)
    return np.where(masked, np.asarray(mask_id, dtype=ids.dtype), np.where(replaced, random, ids)), chosen


def _class_logits(loss: str, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Both, checked; logits in float32 or better, labels as int64."""
    if logits.dim() != 2 or not len(logits):
        raise misfit(loss, "logits of shape (N, classes) with at least one row", logits)
    if labels.shape != logits.shape[:1]:
        raise misfit(loss, f"labels of shape ({len(logits)},)", labels)
    classes(loss, labels, logits.shape[1])
    return finite(f"logits of {loss}", wide(logits)), labels.long()
