"""QuickThoughts: cross-entropy of picking a sentence's neighbours among the sentences of the batch."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.errors import ConfigError, DataError
from pipeline.losses.checks import (
    check_aligned,
    require_candidates,
    require_finite,
    require_shape,
)
from pipeline.losses.contrastive import MASKED_LOGIT, inner_products


def quick_thoughts(
    first: Tensor,
    second: Tensor,
    *,
    documents: Tensor | None = None,
    context: int = 1,
    diag: Literal["mask", "zero"] = "mask",
    excluded: Tensor | None = None,
) -> Tensor:
    """Mean cross-entropy of picking the neighbours of each sentence.

    Source: QuickThoughts, Logeswaran & Lee 2018, section 3.

    Scores are raw inner products. The target distribution is uniform over a sentence's neighbours: sentences
    of the same document at a distance of at most `context`. Sentences without a neighbour do not count in the
    mean. For pairs in any order use `info_nce`.

    Args:
        first: (N, D) consecutive sentences through one encoder.
        second: (N, D) the same sentences through the other encoder.
        documents: (N,) number of each sentence's document; None if all are of one document.
        context: largest distance between neighbours, in sentences; at least 1.
        diag: "mask" removes a sentence from its own candidates, "zero" gives it score 0, as the published
            program does.
        excluded: (N, N) bool, True where a candidate is not used as a negative; neighbours are never
            excluded.

    Returns:
        Scalar: log(N - 1) with "mask", or log N with "zero", if all scores are equal.

    Raises:
        ConfigError: fewer than two rows, or `context` below 1.
        DataError: no sentence has a neighbour.
        ModelError: values that are not finite.
        Defect: wrong shapes.

    >>> sentences = torch.zeros(3, 2)
    >>> round(quick_thoughts(sentences, sentences).item(), 4)  # log 2
    0.6931
    >>> round(quick_thoughts(sentences, sentences, diag="zero").item(), 4)  # log 3
    1.0986
    """
    first, second = check_aligned("QuickThoughts", first=first, second=second)
    require_candidates("QuickThoughts", len(first))
    targets = neighbours(len(first), documents, context, first.device)
    diagonal = torch.eye(len(first), dtype=torch.bool, device=first.device)
    scores = require_finite("inner products of QuickThoughts", inner_products(first, second))
    scores = scores.masked_fill(diagonal, MASKED_LOGIT if diag == "mask" else 0.0)
    if excluded is not None:
        require_shape("QuickThoughts", "excluded", excluded, *scores.shape)
        scores = scores.masked_fill(excluded & ~targets & ~diagonal, MASKED_LOGIT)
    has_neighbour = targets.any(dim=1)
    if not bool(has_neighbour.any()):
        raise DataError(
            "QuickThoughts",
            "neighbours from one document in the batch",
            "none",
            "use batches of consecutive sentences, from documents of at least two sentences",
        )
    probabilities = F.normalize(targets[has_neighbour].to(scores.dtype), p=1, dim=1)
    return F.cross_entropy(scores[has_neighbour], probabilities)


def neighbours(count: int, documents: Tensor | None, context: int, device: torch.device) -> Tensor:
    """Return (count, count) bool: True for sentences of one document at a distance of 1 to `context`.

    >>> neighbours(4, torch.tensor([0, 0, 0, 1]), 1, torch.device("cpu")).int().tolist()
    [[0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]]
    """
    if context < 1:
        raise ConfigError("context", "at least 1", str(context), "raise context")
    positions = torch.arange(count, device=device)
    distance = (positions[:, None] - positions).abs()
    near = (distance >= 1) & (distance <= context)
    if documents is None:
        return near
    require_shape("QuickThoughts", "documents", documents, count)
    return near & (documents[:, None] == documents)
