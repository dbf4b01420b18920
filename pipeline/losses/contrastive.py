"""Picking the positive among the candidates of a batch: InfoNCE in one or two directions, and NT-Xent."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.errors import Defect
from pipeline.losses.checks import as_many, positive, representations, several, shaped

MASKED = -1e9  # the logit of what is no candidate; finite, for a soft target of 0 times -inf is NaN


def products(left: Tensor, right: Tensor) -> Tensor:
    """(Q, K) inner products of the rows of left (Q, D) and right (K, D), in their own precision: autocast would multiply in half."""
    with torch.autocast(left.device.type, enabled=False):
        return left @ right.T


def cosines(left: Tensor, right: Tensor) -> Tensor:
    """(Q, K) cosines of the rows of left (Q, D) and right (K, D), float32 or better; 0 with a zero vector."""
    left, right = representations("cosines", left=left, right=right)
    return products(F.normalize(left, dim=-1, eps=1e-12), F.normalize(right, dim=-1, eps=1e-12))


def info_nce(
    queries: Tensor,
    keys: Tensor,
    *,
    temperature: float,
    negatives: Tensor | None = None,
    hard_negative_weight: float = 1.0,
    excluded: Tensor | None = None,
    first: int = 0,
    symmetric: bool = False,
) -> Tensor:
    """Mean cross-entropy of picking its own key for each query among all candidates: log(candidates) when they are alike, towards 0 when pairs stand apart.

    queries (Q, D), keys (K, D) and negatives (M, D) need not be normalized. Query i's own key is keys[first + i], its own hard negative negatives[first + i];
    all others are in-batch or extra negatives. `first` is where this rank's rows begin among the gathered ones: averaged over ranks, loss and gradient
    are those of the whole batch. hard_negative_weight alpha multiplies exp(logit) of the own hard negative alone (log alpha on the diagonal).
    excluded (Q, K + M) bool: true where a candidate is no negative, as a text that stands twice in the batch; the own key always stays.
    symmetric: the mean with the other direction, where each own key picks among the queries, without `negatives`; it needs all queries in one place.
    ConfigError on a temperature or weight that is not above 0, or a single candidate; ModelError on values that are not finite; Defect on shapes.
    SimCSE (Gao et al. 2021), eq. 1, eq. 5 and the weight of its appendix.
    """
    positive("hard_negative_weight", hard_negative_weight)
    logits = candidate_logits(queries, keys, negatives, temperature)
    _check_rows(len(queries), first, keys=len(keys), negatives=len(keys if negatives is None else negatives))
    several("InfoNCE", logits.shape[1])
    own = first + torch.arange(len(queries), device=logits.device)
    if negatives is not None and hard_negative_weight != 1:
        logits = logits + math.log(hard_negative_weight) * _places(len(keys) + own, logits)
    if excluded is not None:
        shaped("InfoNCE", "excluded", excluded, *logits.shape)
        logits = logits.masked_fill(excluded & ~_places(own, logits).bool(), MASKED)
    loss = F.cross_entropy(logits, own)
    return (loss + _from_keys(queries, keys, temperature, excluded, first)) / 2 if symmetric else loss


def candidate_logits(queries: Tensor, keys: Tensor, negatives: Tensor | None, temperature: float) -> Tensor:
    """(Q, K + M) cosines of queries (Q, D) with keys (K, D), then with negatives (M, D), over the temperature."""
    positive("temperature", temperature)
    near = cosines(queries, keys)
    return (
        near if negatives is None else torch.cat([near, cosines(queries, negatives)], dim=1)
    ) / temperature


def nt_xent(
    first: Tensor,
    second: Tensor,
    *,
    temperature: float,
    among: tuple[Tensor, Tensor] | None = None,
    start: int = 0,
    excluded: Tensor | None = None,
) -> Tensor:
    """Sum of two cross-entropies, of first views picking their second ones and the reverse, each among 2N - 1 candidates: 2 log(2N - 1) when all are alike.

    first, second (n, D): two views of n texts, not necessarily normalized. A view's candidates are all of the other side and the others of its own side.
    among: first and second views (N, D) of the texts of all ranks, of which these n are those from `start` on; None: these alone. Averaged over ranks, loss and
    gradient are those of the whole batch. excluded (n, N) bool: true where texts i and j are equal, so that neither view of j is a negative of i. Errors as in info_nce.
    ConSERT (Yan et al. 2021), section 3.2, after NT-Xent (Chen et al. 2020), eq. 1; the directions are added, not averaged.
    """
    firsts, seconds = (first, second) if among is None else among
    as_many("NT-Xent", len(first), second=second)
    as_many("NT-Xent", len(firsts), seconds=seconds)
    several("NT-Xent", len(firsts))
    equal = (
        torch.zeros(len(first), len(firsts), dtype=torch.bool, device=first.device)
        if excluded is None
        else excluded
    )
    shaped("NT-Xent", "excluded", equal, len(first), len(firsts))
    itself = (
        torch.arange(len(firsts), device=first.device)
        == start + torch.arange(len(first), device=first.device)[:, None]
    )
    masked = torch.cat([equal, equal | itself], dim=1)
    forth = info_nce(first, seconds, temperature=temperature, negatives=firsts, excluded=masked, first=start)
    return forth + info_nce(
        second, firsts, temperature=temperature, negatives=seconds, excluded=masked, first=start
    )


def _from_keys(
    queries: Tensor, keys: Tensor, temperature: float, excluded: Tensor | None, first: int
) -> Tensor:
    """The other direction: own keys pick among the queries."""
    if first:
        raise Defect(
            "InfoNCE",
            "all queries in one place for both directions",
            f"rows that begin at {first}",
            "average two calls, one with queries and keys exchanged",
        )
    count = len(queries)
    return info_nce(
        keys[:count],
        queries,
        temperature=temperature,
        excluded=None if excluded is None else excluded[:, :count].T,
    )


def _check_rows(queries: int, first: int, **rows: int) -> None:
    """Defect unless each query has its own row among the others."""
    for name, count in rows.items():
        if not 0 <= first <= count - queries:
            raise Defect(
                "InfoNCE",
                f"{name} from row {first} on for {queries} queries",
                f"{count} {name}",
                "give the representations of one batch",
            )


def _places(own: Tensor, logits: Tensor) -> Tensor:
    """1 at column own[i] of row i, else 0; in the shape and precision of the logits."""
    return torch.zeros_like(logits).scatter_(1, own[:, None], 1.0)
