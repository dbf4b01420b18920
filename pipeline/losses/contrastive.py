"""Contrastive losses: InfoNCE and NT-Xent."""

import math
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.errors import Defect
from pipeline.losses.checks import (
    check_representations,
    require_candidates,
    require_positive,
    require_rows,
    require_shape,
)

Similarity = Literal["cosine", "dot"]
MASKED_LOGIT = -1e9  # logit of excluded candidates; -inf times a target probability of 0 would be NaN


def inner_products(left: Tensor, right: Tensor) -> Tensor:
    """Return the (Q, K) inner products of left (Q, D) and right (K, D).

    They are computed in the precision of the arguments, under autocast too.
    """
    with torch.autocast(left.device.type, enabled=False):
        return left @ right.T


def cosines(left: Tensor, right: Tensor) -> Tensor:
    """Return the (Q, K) cosines of left (Q, D) and right (K, D) in at least float32.

    The cosine with a zero vector is 0.

    >>> right = torch.tensor([[6.0, 8.0], [0.0, 0.0]])
    >>> cosines(torch.tensor([[3.0, 4.0]]), right).round(decimals=4).tolist()
    [[1.0, 0.0]]
    """
    left, right = check_representations("cosines", left=left, right=right)
    return inner_products(F.normalize(left, dim=-1, eps=1e-12), F.normalize(right, dim=-1, eps=1e-12))


def similarities(left: Tensor, right: Tensor, similarity: Similarity) -> Tensor:
    """Return the (Q, K) cosines, or inner products, of left (Q, D) and right (K, D) in at least float32."""
    if similarity == "cosine":
        return cosines(left, right)
    return inner_products(*check_representations("inner products", left=left, right=right))


def info_nce(
    queries: Tensor,
    keys: Tensor,
    *,
    temperature: float,
    similarity: Similarity = "cosine",
    negatives: Tensor | None = None,
    hard_negative_weight: float = 1.0,
    excluded: Tensor | None = None,
    offset: int = 0,
) -> Tensor:
    """Mean cross-entropy of picking key i for query i among all candidates.

    Source: SimCSE, Gao et al. 2021, eq. 1 and 5.

    With several ranks, each rank passes its own queries, the keys gathered from all ranks, and `offset`. Loss
    and gradient, averaged over ranks, then equal those of the whole batch. If both views should be queries
    and keys use `nt_xent`; for a queue of negatives, `moco`; for a single negative, `triplet`.

    Args:
        queries: (Q, D), need not be normalized.
        keys: (K, D) with K >= offset + Q. The positive of query i is keys[offset + i]; all other keys are
            negatives.
        temperature: divides the similarities; > 0.
        similarity: "cosine", or "dot" for inner products (SimCSE, appendix), with a temperature of 1.
        negatives: (M, D) with M >= offset + Q. The hard negative of query i is negatives[offset + i]; the
            others are negatives too.
        hard_negative_weight: factor of exp(logit) of a query's own hard negative (SimCSE, appendix); > 0.
        excluded: (Q, K + M) bool, True where a candidate is not used as a negative, for example an equal
            text. The positive is never excluded.
        offset: index of this rank's first row among the gathered keys.

    Returns:
        Scalar: log(number of candidates) if all are alike, close to 0 if the pairs are well separated.

    Raises:
        ConfigError: a temperature or weight that is not above 0, or a single candidate.
        ModelError: values that are not finite.
        Defect: wrong shapes.

    >>> same, distinct = torch.ones(4, 2), torch.eye(4)
    >>> round(info_nce(same, same, temperature=0.05).item(), 4)  # log 4
    1.3863
    >>> round(info_nce(distinct, distinct, temperature=0.05).item(), 4)
    0.0
    >>> round(info_nce(same, same, temperature=0.05, negatives=same).item(), 4)  # log 8
    2.0794
    """
    require_positive("hard_negative_weight", hard_negative_weight)
    require_positive("temperature", temperature)
    logits = similarities(queries, keys, similarity)
    if negatives is not None:
        logits = torch.cat([logits, similarities(queries, negatives, similarity)], dim=1)
    logits = logits / temperature
    _check_offset(
        len(queries), offset, keys=len(keys), negatives=len(keys if negatives is None else negatives)
    )
    require_candidates("InfoNCE", logits.shape[1])
    positives = offset + torch.arange(len(queries), device=logits.device)
    if negatives is not None and hard_negative_weight != 1:
        logits = logits + math.log(hard_negative_weight) * _one_hot(len(keys) + positives, logits)
    if excluded is not None:
        require_shape("InfoNCE", "excluded", excluded, *logits.shape)
        logits = logits.masked_fill(excluded & ~_one_hot(positives, logits).bool(), MASKED_LOGIT)
    return F.cross_entropy(logits, positives)


def nt_xent(
    first: Tensor,
    second: Tensor,
    *,
    temperature: float,
    gathered: tuple[Tensor, Tensor] | None = None,
    offset: int = 0,
    excluded: Tensor | None = None,
) -> Tensor:
    """Sum of the cross-entropies of both views picking each other among 2N - 1 candidates.

    Source: ConSERT, Yan et al. 2021, section 3.2, after NT-Xent (Chen et al. 2020), eq. 1. The losses of the
    two directions are added, not averaged.

    The candidates of a first view are all second views and the other first views, and likewise for a second
    view. Loss and gradient, averaged over ranks, equal those of the whole batch. `info_nce` has one
    direction, and takes hard negatives.

    Args:
        first: (n, D) first views of n texts, need not be normalized.
        second: (n, D) second views of the same texts.
        temperature: divides the cosines; > 0.
        gathered: first and second views (N, D) of all ranks; None if there is one rank.
        offset: index of this rank's first row among the gathered ones.
        excluded: (n, N) bool, True at [i, j] if no view of text j is used as a negative of text i, for
            example because the texts are equal.

    Returns:
        Scalar: 2 log(2N - 1) if all views are alike.

    Raises:
        ConfigError, ModelError, Defect: as in `info_nce`.

    >>> same = torch.ones(4, 2)
    >>> round(nt_xent(same, same, temperature=0.1).item(), 4)  # 2 log 7
    3.8918
    """
    firsts, seconds = (first, second) if gathered is None else gathered
    require_rows("NT-Xent", len(first), second=second)
    require_rows("NT-Xent", len(firsts), seconds=seconds)
    require_candidates("NT-Xent", len(firsts))
    rows = offset + torch.arange(len(first), device=first.device)
    itself = torch.arange(len(firsts), device=first.device) == rows[:, None]
    if excluded is None:
        excluded = torch.zeros_like(itself)
    require_shape("NT-Xent", "excluded", excluded, *itself.shape)
    loss = partial(
        info_nce,
        temperature=temperature,
        excluded=torch.cat([excluded, excluded | itself], dim=1),
        offset=offset,
    )
    return loss(first, seconds, negatives=firsts) + loss(second, firsts, negatives=seconds)


def _check_offset(queries: int, offset: int, **candidates: int) -> None:
    """Raise Defect unless there is a key and a negative at offset + i for each query i."""
    for name, count in candidates.items():
        if not 0 <= offset <= count - queries:
            raise Defect(
                "InfoNCE",
                f"{queries} {name}, starting at row {offset}",
                f"{count} {name}",
                "pass the representations of one batch",
            )


def _one_hot(columns: Tensor, logits: Tensor) -> Tensor:
    """Return 1 at column columns[i] of row i, else 0, in the shape and precision of the logits."""
    return torch.zeros_like(logits).scatter_(1, columns[:, None], 1.0)
