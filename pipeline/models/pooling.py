"""Token states of packed texts become one vector per text, in float32, each from its own tokens alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_AVERAGED = {"first_last": (1, -1), "static_last": (0, -1), "last2": (-2, -1), "static": (0,)}       # hidden states; every other pooling reads the last


@dataclass(frozen=True)
class Segments:
    """Where n texts lie in a buffer; all fields (n,) int64."""

    starts: Tensor
    """first token"""
    lengths: Tensor
    """tokens, each at least 1"""
    skipped: Tensor
    """leading tokens (a prompt's) that take no part in the pooling; less than `lengths`"""


def segments(starts: Tensor, lengths: Tensor, skip: int = 0) -> Segments:
    """Texts whose first `skip` tokens stay out, except where nothing else is there."""
    return Segments(starts, lengths, torch.where(lengths > skip, skip, 0))


def layers_of(poolings: Sequence[str], layers: int) -> set[int]:
    """Numbers of the hidden states that the poolings read: 0 is the embedding layer's output, `layers` the last layer's."""
    return {number % (layers + 1) for name in poolings for number in _AVERAGED.get(name, (-1,))}


def pool(name: str, states: Mapping[int, Tensor], layers: int, where: Segments) -> Tensor:
    """(n, d) float32 of pooling `name` over the hidden states (tokens, d), given by number; `cls_mlp` is `cls` here, its layer comes after.

    Sums run token after token, so a text's bits do not depend on its neighbours.
    """
    chosen = [states[number % (layers + 1)] for number in _AVERAGED.get(name, (-1,))]
    if name in ("cls", "cls_mlp"):
        return chosen[0][where.starts + where.skipped].float()
    if name == "last":
        return chosen[0][where.starts + where.lengths - 1].float()
    places, positions, counts = _pooled_tokens(where)
    tokens = _mean([state[places].float() for state in chosen])
    if name == "max":
        return torch.segment_reduce(tokens, "max", lengths=counts, axis=0)
    if name == "weighted_mean":                         # Muennighoff 2022: later tokens weigh more; a prompt left out still counts as positions
        weights = (positions + 1).float()[:, None]
        return _sums(tokens * weights, counts) / _sums(weights, counts)
    divisor = counts[:, None].float()
    return _sums(tokens, counts) / (divisor.sqrt() if name == "sqrt_len" else divisor)


def _pooled_tokens(where: Segments) -> tuple[Tensor, Tensor, Tensor]:
    """(places in the buffer, positions in their texts, tokens per text) of all tokens that take part."""
    counts = where.lengths - where.skipped
    firsts = torch.repeat_interleave(where.skipped - (torch.cumsum(counts, 0) - counts), counts)
    positions = torch.arange(len(firsts), device=firsts.device) + firsts
    return positions + torch.repeat_interleave(where.starts, counts), positions, counts


def _mean(states: list[Tensor]) -> Tensor:
    return states[0] if len(states) == 1 else (states[0] + states[1]) / 2


def _sums(tokens: Tensor, counts: Tensor) -> Tensor:
    return torch.segment_reduce(tokens, "sum", lengths=counts, axis=0)
