"""Choice of the next token from the scores of the vocabulary: greedy or sampled."""

from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from pipeline.settings.augment import DecodingSettings

# tokens summed as one block: one running sum over the whole vocabulary is slower and less exact
_BLOCK = 64


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
    distribution runs over tokens by id, or by decreasing probability (ties by id) if top-k or
    top-p restricts them.

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
        return _inverse(torch.softmax(scores, -1), uniforms)
    if decoding.top_k is not None:
        best, tokens = scores.topk(min(decoding.top_k, scores.shape[-1]), dim=-1)
        chances = torch.softmax(best, -1)
    else:
        chances, tokens = _likeliest(torch.softmax(scores, -1), decoding.top_p)
    if decoding.top_p < 1.0:
        before = chances.cumsum(-1) - chances  # probability of all tokens that are more likely
        chances = chances * (before < decoding.top_p)
    return tokens.gather(1, _first_above(chances, uniforms)[:, None])[:, 0]


def _likeliest(chances: Tensor, mass: float) -> tuple[Tensor, Tensor]:
    """Return the most likely tokens of each row, at least enough to cover the probability `mass`.

    Sorting the whole vocabulary costs more than a decoding step, so it is the last resort.

    Returns:
        Probabilities, decreasing, and token ids, each (n, k).
    """
    count, size = 64, chances.shape[-1]
    while count < size:
        best, tokens = chances.topk(count, dim=-1)
        if bool((best.sum(-1) >= mass).all()):
            return best, tokens
        count *= 8
    return torch.sort(chances, stable=True, dim=-1, descending=True)


def _inverse(chances: Tensor, uniforms: Tensor) -> Tensor:
    """Return the result of `_first_above` for a whole vocabulary: find a block of tokens, then the token."""
    rows, size = chances.shape
    padded = torch.nn.functional.pad(chances, (0, -size % _BLOCK)).view(rows, -1, _BLOCK)
    blocks = padded.sum(-1)
    block = _first_above(blocks, uniforms)
    sums = blocks.cumsum(-1)
    before = (sums - blocks).gather(1, block[:, None])[:, 0]
    inside = padded[torch.arange(rows, device=chances.device), block]
    rest = ((uniforms * sums[:, -1] - before) / inside.sum(-1)).clamp(0, 1 - 2**-24)
    return block * _BLOCK + _first_above(inside, rest)


def _first_above(chances: Tensor, uniforms: Tensor) -> Tensor:
    """Return the first index of each row (n, k) whose running sum exceeds uniform * sum.

    It never has probability 0.
    """
    sums = chances.cumsum(-1)
    passed = (sums <= uniforms[:, None] * sums[:, -1:]).sum(-1)
    # rounding may put the threshold behind the last token of positive probability
    last = chances.shape[-1] - 1 - (chances.flip(-1) > 0).int().argmax(-1)
    return torch.minimum(passed, last)
