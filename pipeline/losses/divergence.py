"""Kullback-Leibler terms between two passes of the same input: R-Drop, and PSER in both readings. Gradients flow through both arguments."""

from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from pipeline.losses.checks import finite, misfit, positive, representations, several, shaped, wide
from pipeline.losses.classification import classification
from pipeline.losses.contrastive import cosines


def symmetric_divergence(first: Tensor, second: Tensor) -> Tensor:
    """(KL(P||Q) + KL(Q||P)) / 2, in nats, P = softmax(first), Q = softmax(second) row by row, mean over the rows; first, second (N, C) logits.

    ModelError on logits that are not finite, Defect on shapes. R-Drop (Liang et al. 2021), eq. 2.
    """
    if first.dim() != 2 or not len(first):
        raise misfit("divergence", "logits of shape (N, classes) with at least one row", first)
    shaped("divergence", "second", second, *first.shape)
    p, q = (F.log_softmax(finite("logits of the divergence", wide(each)), dim=1) for each in (first, second))
    return ((p.exp() - q.exp()) * (p - q)).sum(
        dim=1
    ).mean() / 2  # the two KL terms added: (P - Q)(log P - log Q)


def r_drop(first: Tensor, second: Tensor, labels: Tensor, *, alpha: float) -> Tensor:
    """Cross-entropies of both passes, added, and alpha times their symmetric divergence; first, second (N, C) logits, labels (N,) class numbers.

    Mean over the rows. A program that averages the two cross-entropies means by alpha half of this one. ConfigError on alpha <= 0; further errors as in
    `classification` and `symmetric_divergence`. R-Drop (Liang et al. 2021), eq. 4.
    """
    positive("alpha", alpha)
    return (
        classification(first, labels)
        + classification(second, labels)
        + alpha * symmetric_divergence(first, second)
    )


def embedding_divergence(first: Tensor, second: Tensor) -> Tensor:
    """Symmetric divergence of softmax(first) and softmax(second) over the D dimensions of two passes (N, D): the literal reading of PSER."""
    return symmetric_divergence(*representations("PSER", first=first, second=second))


def similarity_divergence(first: Tensor, second: Tensor, *, temperature: float) -> Tensor:
    """Symmetric divergence of what first views and second views (N, D) predict: softmax of cosines over the temperature with the N views of the other side.

    This is the model's predictive distribution, as in R-Drop. ConfigError on a temperature that is not above 0, or a single row.
    """
    positive("temperature", temperature)
    shaped("PSER", "second", second, *first.shape)
    several("PSER", len(first))
    logits = cosines(first, second) / temperature
    return symmetric_divergence(logits, logits.T)


def pser(
    first: Tensor,
    second: Tensor,
    *,
    temperature: float,
    kl_on: Literal["embedding", "similarity"] = "embedding",
) -> Tensor:
    """The divergence term of PSER (Guo et al.), in either reading of its text; the weight alpha and the InfoNCE term are the caller's."""
    if kl_on == "similarity":
        return similarity_divergence(first, second, temperature=temperature)
    return embedding_divergence(first, second)
