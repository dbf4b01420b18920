"""IS-BERT: mutual information of a sentence's vector and the features of its tokens."""

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.losses.checks import (
    check_representations,
    require_candidates,
    require_finite,
    require_rows,
    require_shape,
)
from pipeline.losses.contrastive import inner_products


def jensen_shannon(
    features: Tensor,
    counts: Tensor,
    vectors: Tensor,
    *,
    offset: int = 0,
    excluded: Tensor | None = None,
) -> Tensor:
    """Mean over sentences of sum_t sp(-F_t . E) + mean over other vectors E' of sum_t sp(F_t . E').

    F_t are the features of a sentence's tokens, E is its vector, sp(x) = log(1 + exp(x)). Up to constants
    this is minus the Jensen-Shannon estimate of their mutual information, summed over tokens.

    Source: IS-BERT, Zhang et al. 2020, equations 3 and 4. They pair a vector with the features of other
    sentences, not features with other vectors; over a whole batch both give the same pairs, with the same
    weights unless some are excluded.
    For vectors of whole texts use `info_nce`.

    Args:
        features: (T, D) features of the tokens of Q sentences, one sentence after another.
        counts: (Q,) number of tokens of each sentence, at least 1.
        vectors: (K, D) vectors of all sentences; row `offset + i` belongs to sentence i.
        offset: row of the first sentence's vector.
        excluded: (Q, K) bool, True where another vector is left out because it means the same.

    Returns:
        Scalar: 2 log 2 times the mean number of tokens if all products are 0.

    Raises:
        ConfigError: fewer than two vectors.
        ModelError: values that are not finite.
        Defect: wrong shapes.

    >>> features, counts = torch.zeros(5, 2), torch.tensor([2, 3])
    >>> round(jensen_shannon(features, counts, torch.ones(2, 2)).item(), 4)  # 2 log 2 * 2.5
    3.4657
    """
    features, vectors = check_representations("jensen_shannon", features=features, vectors=vectors)
    require_candidates("jensen_shannon", len(vectors))
    require_rows("jensen_shannon", int(counts.sum()), features=features)
    products = require_finite("products of jensen_shannon", inner_products(features, vectors))
    sentences = torch.arange(len(counts), device=counts.device)
    own = sentences + offset
    own_of_token = torch.repeat_interleave(own, counts, output_size=len(features))
    of_own = F.softplus(-products.gather(1, own_of_token[:, None]))  # (T, 1)
    positive = torch.segment_reduce(of_own, "sum", lengths=counts, axis=0, unsafe=True)[:, 0]
    sums = torch.segment_reduce(F.softplus(products), "sum", lengths=counts, axis=0, unsafe=True)  # (Q, K)
    is_other = torch.ones_like(sums, dtype=torch.bool)
    is_other[sentences, own] = False
    if excluded is not None:
        require_shape("jensen_shannon", "excluded", excluded, *sums.shape)
        is_other &= ~excluded
    negative = (sums * is_other).sum(dim=1) / is_other.sum(dim=1).clamp(min=1)
    return (positive + negative).mean()
