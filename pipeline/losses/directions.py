"""InfoNCE in several directions: negatives among documents and queries, hard ones with more weight."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.errors import ConfigError, Defect
from pipeline.losses.checks import require_candidates, require_positive, require_rows, require_shape
from pipeline.losses.contrastive import MASKED_LOGIT, Similarity, similarities

Direction = Literal[
    "query_document", "document_query", "query_query", "document_document", "positive_positive"
]
"""Which texts a row is compared with, besides its own positive.

query_document: its query with all positives and negatives; document_query: its positive with all queries;
query_query: its query with the other queries; document_document: its positive with the positives and the
negatives of other rows; positive_positive: its positive with the positives of other rows.
"""
Softmax = Literal["joint", "each"]
HardnessOn = Literal["in_batch", "own", "all"]
WITH_POSITIVE: tuple[Direction, ...] = ("query_document", "document_query")
"""directions whose candidates include the positive pair"""


@dataclass(frozen=True, eq=False)
class Compared:
    """Vectors of one encoder that are compared: rows of this rank with rows of all ranks."""

    queries: Tensor
    """(Q, D) queries of this rank"""
    documents: tuple[Tensor, ...]
    """positives of all ranks (N, D), then each column of hard negatives (N, D)"""
    all_queries: Tensor | None = None
    """(N, D) queries of all ranks; None if no direction compares with queries"""
    offset: int = 0
    """index of this rank's first row among the N rows"""

    def __post_init__(self) -> None:
        named = {f"documents[{index}]": column for index, column in enumerate(self.documents)}
        if self.all_queries is not None:
            named["all_queries"] = self.all_queries
        require_rows("InfoNCE", self.rows, **named)
        if not 0 <= self.offset <= self.rows - len(self.queries):
            expected = f"{len(self.queries)} rows of {self.rows}, starting at row {self.offset}"
            raise Defect("InfoNCE", expected, f"{self.rows} rows", "pass the representations of one batch")

    @property
    def rows(self) -> int:
        """Number N of rows of all ranks."""
        return len(self.documents[0])

    def candidates(self, direction: Direction) -> int:
        """Return the number K of candidates: N, or N times the columns of documents, side by side."""
        return self.rows * (len(self.documents) if direction.endswith("document") else 1)

    def similarities(self, direction: Direction, similarity: Similarity) -> Tensor:
        """Return the (Q, K) similarities of this rank's rows with the candidates of a direction."""
        own_positives = self.documents[0][self.offset : self.offset + len(self.queries)]
        left = self.queries if direction.startswith("query") else own_positives
        if direction.endswith("query"):
            assert self.all_queries is not None
            return similarities(left, self.all_queries, similarity)
        documents = self.documents if direction.endswith("document") else self.documents[:1]
        return torch.cat([similarities(left, column, similarity) for column in documents], dim=1)

    def own(self, direction: Direction) -> Tensor:
        """Return (Q, K) bool: True where a candidate is a text of the same row."""
        device = self.queries.device
        rows = self.offset + torch.arange(len(self.queries), device=device)
        return torch.arange(self.candidates(direction), device=device) % self.rows == rows[:, None]


def directed_info_nce(
    compared: Compared,
    *,
    temperature: float,
    directions: Sequence[Direction] = ("query_document",),
    softmax: Softmax = "joint",
    similarity: Similarity = "cosine",
    hard_negative_weight: float = 1.0,
    hardness: float = 0.0,
    hardness_on: HardnessOn = "all",
    excluded: Mapping[Direction, Tensor] | None = None,
) -> Tensor:
    """Mean cross-entropy of picking a row's positive among the candidates of several directions.

    Sources: GTE, Li et al. 2023, with the directions between queries and documents, both ways, and among
    each, and one softmax; Jina Embeddings 2, Günther et al. 2023, with a softmax for each of query_document
    and document_query; LLaVE, Lan et al. 2025, eq. 5, for the hardness. With the direction query_document
    alone this is `info_nce`. Loss and gradient, averaged over ranks, equal those of the whole batch.

    Args:
        compared: vectors of the texts, need not be normalized.
        temperature: divides the similarities; > 0.
        directions: candidates of each row; query_document is one of them.
        softmax: "joint" for one softmax over the candidates of all directions, "each" for the mean over
            directions of the loss of each, which requires directions with the positive pair.
        similarity: "cosine", or "dot" for inner products.
        hard_negative_weight: factor of exp(logit) of a row's own negative in the first column of negatives.
        hardness: adds this times the similarity, without gradient and not divided by the temperature, to the
            logits of negatives in the direction query_document; >= 0. More similar negatives count more.
        hardness_on: negatives that `hardness` applies to: texts of other rows ("in_batch"), the row's own
            hard negatives ("own"), or both ("all").
        excluded: (Q, K) bool by direction, True where a candidate is not used as a negative. The positive is
            never excluded, and a text is never its own negative, nor is a document of the same row.

    Returns:
        Scalar: log(number of candidates) if all are alike and there is one softmax.

    Raises:
        ConfigError: a temperature, weight or hardness out of range, a single candidate, or directions that
            do not fit the softmax.
        ModelError: values that are not finite.
        Defect: wrong shapes.

    >>> same = torch.ones(4, 2)
    >>> compared = Compared(same, (same,), all_queries=same)
    >>> round(directed_info_nce(compared, temperature=0.05).item(), 4)  # log 4
    1.3863
    >>> both = ("query_document", "query_query")
    >>> round(directed_info_nce(compared, temperature=0.05, directions=both).item(), 4)  # log (4 + 3)
    1.9459
    """
    require_positive("hard_negative_weight", hard_negative_weight)
    require_positive("temperature", temperature)
    check_directions(directions, softmax)
    targets = compared.offset + torch.arange(len(compared.queries), device=compared.queries.device)
    pools = []
    for direction in directions:
        scores, own = compared.similarities(direction, similarity), compared.own(direction)
        logits = scores / temperature
        if direction == "query_document":
            column = torch.arange(own.shape[1], device=own.device) // compared.rows
            logits = logits + math.log(hard_negative_weight) * (own & (column == 1)).to(logits)
            logits = logits + hardness * scores.detach() * _weighted(own, column, hardness_on)
        never = torch.zeros_like(own) if direction in WITH_POSITIVE else own
        if excluded is not None and direction in excluded:
            require_shape("InfoNCE", f"excluded of {direction}", excluded[direction], *own.shape)
            never = never | excluded[direction]
        if direction in WITH_POSITIVE:
            never = never.scatter(1, targets[:, None], False)
        pools.append(logits.masked_fill(never, MASKED_LOGIT))
    require_candidates("InfoNCE", sum(pool.shape[1] for pool in pools))
    if softmax == "joint":
        return F.cross_entropy(torch.cat(pools, dim=1), targets)
    return torch.stack([F.cross_entropy(pool, targets) for pool in pools]).mean()


def check_directions(directions: Sequence[Direction], softmax: Softmax) -> None:
    """Raise ConfigError unless the directions are distinct, have query_document first and fit the softmax."""
    if not directions or directions[0] != "query_document" or len({*directions}) < len(directions):
        raise ConfigError(
            "directions",
            "distinct directions, query_document first, which has the positive",
            ", ".join(directions) or "none",
            "correct the list",
        )
    without = [direction for direction in directions if direction not in WITH_POSITIVE]
    if softmax == "each" and without:
        raise ConfigError(
            "softmax",
            f"joint, because the candidates of {without[0]} do not include the positive",
            "each",
            "set softmax to joint, or leave that direction out",
        )


def _weighted(own: Tensor, column: Tensor, hardness_on: HardnessOn) -> Tensor:
    """Return (Q, K) bool: the negatives whose logits grow with their similarity."""
    if hardness_on == "in_batch":
        return ~own
    is_own_negative = own & (column > 0)
    return is_own_negative if hardness_on == "own" else ~own | is_own_negative
