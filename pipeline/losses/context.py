"""Telling the neighbours of a sentence from the other sentences around it."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.errors import ConfigError, DataError
from pipeline.losses.checks import as_many, finite, representations, several, shaped
from pipeline.losses.contrastive import MASKED, products


def quick_thoughts(
    first: Tensor,
    second: Tensor,
    *,
    documents: Tensor | None = None,
    context: int = 1,
    diag: Literal["mask", "zero"] = "mask",
    excluded: Tensor | None = None,
) -> Tensor:
    """Mean cross-entropy of picking its neighbours for each sentence among the batch, by raw inner products: each neighbour counts alike.

    first, second (N, D): consecutive sentences through two encoders. documents (N,): a number per sentence; neighbours are at most `context` places away in
    the same document, and sentences without one are left out of the mean. diag: a sentence is no candidate of its own ("mask"), or one with score 0 ("zero",
    as in the published program). excluded (N, N) bool: true where a candidate is no negative; neighbours always stay.
    ConfigError on fewer than two rows or context < 1, DataError where no sentence has a neighbour, ModelError on values that are not finite, Defect on shapes.
    QuickThoughts (Logeswaran & Lee 2018), section 3.
    """
    first, second = representations("QuickThoughts", first=first, second=second)
    as_many("QuickThoughts", len(first), second=second)
    several("QuickThoughts", len(first))
    targets = neighbours(len(first), documents, context, first.device)
    itself = torch.eye(len(first), dtype=torch.bool, device=first.device)
    scores = finite("inner products of QuickThoughts", products(first, second)).masked_fill(
        itself, MASKED if diag == "mask" else 0.0
    )
    if excluded is not None:
        shaped("QuickThoughts", "excluded", excluded, *scores.shape)
        scores = scores.masked_fill(excluded & ~targets & ~itself, MASKED)
    placed = targets.any(dim=1)
    if not bool(placed.any()):
        raise DataError(
            "QuickThoughts",
            "neighbours of one document in the batch",
            "none",
            "give consecutive sentences of documents of two sentences or more",
        )
    return F.cross_entropy(scores[placed], F.normalize(targets[placed].to(scores.dtype), p=1, dim=1))


def neighbours(count: int, documents: Tensor | None, context: int, device: torch.device) -> Tensor:
    """(count, count) bool: true where two sentences of one document are 1 to `context` places apart."""
    if context < 1:
        raise ConfigError("context", "at least 1", str(context), "raise it")
    places = torch.arange(count, device=device)
    apart = (places[:, None] - places).abs()
    near = (apart >= 1) & (apart <= context)
    if documents is None:
        return near
    shaped("QuickThoughts", "documents", documents, count)
    return near & (documents[:, None] == documents)
