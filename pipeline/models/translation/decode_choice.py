"""Which token comes next, given the scores of all."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from pipeline.settings.augment import DecodingSettings

_BLOCK = 64  # a sum over blocks and one within a block: a running sum over a whole vocabulary is slower and less exact


class Choice(Protocol):
    """(scores (n, V) in float32, uniform numbers (n,) in [0, 1) or None) -> tokens (n,)."""

    def __call__(self, scores: Tensor, uniforms: Tensor | None) -> Tensor: ...


def choice_of(decoding: DecodingSettings) -> Choice:
    """Of greedy decoding or sampling."""
    if decoding.method == "greedy":
        return greedy
    sampled: Callable[[Tensor, Tensor], Tensor] = lambda scores, uniforms: sample(scores, uniforms, decoding)  # noqa: E731
    return sampled  # type: ignore[return-value]


def greedy(scores: Tensor, uniforms: Tensor | None = None) -> Tensor:
    """The likeliest token of each row; the first one of equals."""
    return scores.argmax(-1)


def sample(scores: Tensor, uniforms: Tensor, decoding: DecodingSettings) -> Tensor:
    """The token at which the cumulative distribution of each row passes its uniform number.

    Temperature, then top-k, then top-p among what is left, as in transformers. Restricted tokens are ordered by falling probability (ties by id), all tokens by id.
    """
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
        chances = chances * (
            chances.cumsum(-1) - chances < decoding.top_p
        )  # what comes before it has less than top_p
    return tokens.gather(1, _first_above(chances, uniforms)[:, None])[:, 0]


def _likeliest(chances: Tensor, mass: float) -> tuple[Tensor, Tensor]:
    """Falling probabilities and their tokens, as many as `mass` needs in every row: sorting all of a vocabulary costs more than a model's step."""
    count, size = 64, chances.shape[-1]
    while count < size:
        best, tokens = chances.topk(count, dim=-1)
        if bool((best.sum(-1) >= mass).all()):
            return best, tokens
        count *= 8
    best, tokens = chances.sort(stable=True, dim=-1, descending=True)
    return best, tokens


def _inverse(chances: Tensor, uniforms: Tensor) -> Tensor:
    """As `_first_above`, for a whole vocabulary: first the block of tokens, then the token in it."""
    rows, size = chances.shape
    padded = torch.nn.functional.pad(chances, (0, -size % _BLOCK)).view(rows, -1, _BLOCK)
    blocks = padded.sum(-1)
    block = _first_above(blocks, uniforms)
    sums = blocks.cumsum(-1)
    before = (sums - blocks).gather(1, block[:, None])[:, 0]
    inside = padded[torch.arange(rows, device=chances.device), block]
    left = ((uniforms * sums[:, -1] - before) / inside.sum(-1)).clamp(0, 1 - 2**-24)
    return block * _BLOCK + _first_above(inside, left)


def _first_above(chances: Tensor, uniforms: Tensor) -> Tensor:
    """First place of each row (n, k) whose running sum is above uniform x sum; never one of probability 0."""
    sums = chances.cumsum(-1)
    total = sums[:, -1:]
    passed = (sums <= (uniforms[:, None] * total)).sum(-1)
    last = (
        chances.shape[-1] - 1 - (chances.flip(-1) > 0).int().argmax(-1)
    )  # rounding may put the threshold at the very end
    return torch.minimum(passed, last)
