"""Kullback-Leibler divergences between two passes over one input (R-Drop, PSER); both get a gradient."""

from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from pipeline.losses.checks import (
    at_least_float32,
    check_representations,
    require_candidates,
    require_finite,
    require_positive,
    require_shape,
    shape_error,
)
from pipeline.losses.contrastive import cosines


def symmetric_divergence(first: Tensor, second: Tensor) -> Tensor:
    """Mean of (KL(P||Q) + KL(Q||P)) / 2, in nats, of the row-wise softmaxes.

    Source: R-Drop, Liang et al. 2021, eq. 2. For vectors instead of logits of classes use `pser`.

    Args:
        first: (N, C) logits of P.
        second: (N, C) logits of Q.

    Raises:
        ModelError: logits that are not finite.
        Defect: wrong shapes.

    >>> import torch
    >>> first, second = torch.tensor([[0.9, 0.1]]).log(), torch.tensor([[0.1, 0.9]]).log()
    >>> round(symmetric_divergence(first, second).item(), 4)  # 0.8 log 9
    1.7578
    >>> symmetric_divergence(first, first).item()
    0.0
    """
    if first.dim() != 2 or not len(first):
        raise shape_error("divergence", "logits of shape (N, classes) with at least one row", first)
    require_shape("divergence", "second", second, *first.shape)
    log_p, log_q = (
        F.log_softmax(require_finite("logits of the divergence", at_least_float32(logits)), dim=1)
        for logits in (first, second)
    )
    # The sum of the two KL terms is sum (P - Q)(log P - log Q).
    return ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(dim=1).mean() / 2


def similarity_divergence(first: Tensor, second: Tensor, *, temperature: float) -> Tensor:
    """Symmetric divergence of the two passes' distributions over the rows of the batch, after R-Drop.

    A row's distribution in one pass is softmax(cosines / temperature), over its cosines with the N rows of
    the other pass.

    Args:
        first: (N, D) representations of the first pass, N >= 2.
        second: (N, D) representations of the second pass.
        temperature: divides the cosines; > 0.

    Raises:
        ConfigError: a temperature that is not above 0, or a single row.
        Defect: wrong shapes.
    """
    require_positive("temperature", temperature)
    require_shape("PSER", "second", second, *first.shape)
    require_candidates("PSER", len(first))
    logits = cosines(first, second) / temperature
    return symmetric_divergence(logits, logits.T)


def pser(
    first: Tensor,
    second: Tensor,
    *,
    temperature: float,
    kl_on: Literal["embedding", "similarity"] = "embedding",
) -> Tensor:
    """Divergence term of PSER (Guo et al.), in either reading of the paper.

    The caller multiplies it by alpha and adds the InfoNCE term. For logits of classes use
    `symmetric_divergence`.

    Args:
        first: (N, D) representations of the first pass.
        second: (N, D) representations of the second pass.
        temperature: divides the cosines; used by "similarity" alone.
        kl_on: "embedding" compares the softmax of the vectors over their dimensions, "similarity" the softmax
            of their cosines within the batch.
    """
    if kl_on == "similarity":
        return similarity_divergence(first, second, temperature=temperature)
    return symmetric_divergence(*check_representations("PSER", first=first, second=second))
