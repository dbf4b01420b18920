"""Choice of the next token from the scores of the vocabulary: greedy or sampled."""

from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from pipeline.settings.augment import DecodingSettings

# tokens of a block: block by block, a running sum over the vocabulary is faster and more exact
_BLOCK = 64
# For top_p, this many of the most likely tokens are tried first, then more by this factor.
_FIRST_COUNT, _COUNT_FACTOR = 64, 8
_BELOW_ONE = 1 - 2**-24  # the largest float32 below 1


class TokenChoice(Protocol):
    """Function that chooses the next token of each row."""

    def __call__(self, scores: Tensor, uniforms: Tensor | None) -> Tensor:
        """Return tokens (n,) for scores (n, V) float32 and random numbers (n,) in [0, 1), None if greedy."""


def choice_of(decoding: DecodingSettings) -> TokenChoice:
    """Return `greedy`, or `sample` with these settings."""
    return greedy if decoding.method == "greedy" else partial(sample, decoding=decoding)


def greedy(scores: Tensor, uniforms: Tensor | None = None) -> Tensor:
    """Return the most likely token of each row, (n,); the lowest id among equals."""
    return scores.argmax(-1)


def sample(scores: Tensor, uniforms: Tensor | None, decoding: DecodingSettings) -> Tensor:
    """Sample a token for each row by inverting its cumulative distribution at its random number.

    Applies temperature, then top-k, then top-p to the remaining tokens, as transformers does. The
    cumulative distribution orders tokens by id, or by decreasing probability (ties by id) if top-k or top-p
    restricts them.

    Args:
        scores: (n, V) logits.
        uniforms: (n,) in [0, 1).
        decoding: temperature, top_k and top_p.

    Returns:
        (n,) token ids.
    """
    assert uniforms is not None
    if decoding.temperature != 1.0:
        scores = scores / decoding.temperature
    if decoding.top_k is None and decoding.top_p >= 1.0:
        return _sample_vocabulary(torch.softmax(scores, -1), uniforms)
    if decoding.top_k is not None:
        best, tokens = scores.topk(min(decoding.top_k, scores.shape[-1]), dim=-1)
        probabilities = torch.softmax(best, -1)
    else:
        probabilities, tokens = _likeliest(torch.softmax(scores, -1), decoding.top_p)
    if decoding.top_p < 1.0:
        before = probabilities.cumsum(-1) - probabilities  # probability of all more likely tokens
        probabilities = probabilities * (before < decoding.top_p)
    return tokens.gather(1, _sample_index(probabilities, uniforms)[:, None])[:, 0]


def _likeliest(probabilities: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """Return the most likely tokens of each row, enough for their probabilities to sum to `top_p`.

    More and more tokens are tried, because sorting the whole vocabulary costs more than a decoding step.

    Returns:
        Probabilities, decreasing, and token ids, each (n, k).
    """
    count, size = _FIRST_COUNT, probabilities.shape[-1]
    while count < size:
        best, tokens = probabilities.topk(count, dim=-1)
        if bool((best.sum(-1) >= top_p).all()):
            return best, tokens
        count *= _COUNT_FACTOR
    return torch.sort(probabilities, stable=True, dim=-1, descending=True)


def _sample_vocabulary(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """Sample an index as `_sample_index` does, from many probabilities: first a block, then a token of it."""
    rows, size = probabilities.shape
    padded = torch.nn.functional.pad(probabilities, (0, -size % _BLOCK)).view(rows, -1, _BLOCK)
    blocks = padded.sum(-1)
    block = _sample_index(blocks, uniforms)
    sums = blocks.cumsum(-1)
    before = (sums - blocks).gather(1, block[:, None])[:, 0]
    in_block = padded[torch.arange(rows, device=probabilities.device), block]
    # the part of the random number that lies within the block, scaled to [0, 1)
    rest = ((uniforms * sums[:, -1] - before) / in_block.sum(-1)).clamp(0, _BELOW_ONE)
    return block * _BLOCK + _sample_index(in_block, rest)


def _sample_index(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """Return the first index of each row (n, k) whose running sum exceeds uniform * sum of the row.

    The value at the index is never 0.
    """
    sums = probabilities.cumsum(-1)
    index = (sums <= uniforms[:, None] * sums[:, -1:]).sum(-1)
    # rounding may keep every running sum at or below the threshold: then the last value above 0 is taken
    last = probabilities.shape[-1] - 1 - (probabilities.flip(-1) > 0).int().argmax(-1)
    return torch.minimum(index, last)
