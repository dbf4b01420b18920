"""Token states of packed texts become one vector per text, in float32, each from its own tokens alone."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_LAYERS = {"first_last": (1, -1), "static_last": (0, -1), "last2": (-2, -1), "static": (0,)}     # hidden states averaged; all others take the last


@dataclass(frozen=True)
class Segments:
    """Where the pooled tokens of n texts lie in a buffer; the text of every token in `places`."""

    starts: Tensor
    """(n,) int64 first pooled token"""
    lengths: Tensor
    """(n,) int64 pooled tokens, each at least 1"""
    places: Tensor
    """(tokens,) int64 positions in the buffer of all pooled tokens, text by text"""
    owners: Tensor
    """(tokens,) int64 text of each of them, rising"""


def segments(starts: Tensor, lengths: Tensor, skip: int = 0) -> Segments:
    """Texts at `starts` of `lengths` tokens; the first `skip` tokens of each (a prompt) stay out, except where nothing else is there."""
    skipped = torch.where(lengths > skip, skip, 0)
    starts, lengths = starts + skipped, lengths - skipped
    owners = torch.repeat_interleave(torch.arange(len(starts), device=starts.device), lengths)
    before = torch.cumsum(lengths, 0) - lengths
    places = torch.arange(len(owners), device=starts.device) - before[owners] + starts[owners]
    return Segments(starts, lengths, places, owners)


def layers_of(poolings: Sequence[str], layers: int) -> set[int]:
    """Numbers of the hidden states that the poolings read: 0 is the embedding layer's output, `layers` the last layer's."""
    return {number % (layers + 1) for name in poolings for number in _LAYERS.get(name, (-1,))}


def pool(name: str, states: dict[int, Tensor], layers: int, where: Segments) -> Tensor:
    """(n, d) float32 of the pooling `name` over hidden states (tokens, d) by number; `cls_mlp` is `cls` here, its layer follows.

    Sums run token by token in text order, so a text's bits do not depend on its neighbours.
    """
    chosen = [states[number % (layers + 1)] for number in _LAYERS.get(name, (-1,))]
    if name in ("cls", "cls_mlp"):
        return chosen[0][where.starts].float()
    if name == "last":
        return chosen[0][where.starts + where.lengths - 1].float()
    tokens = _mean([state[where.places].float() for state in chosen])
    if name == "max":
        empty = torch.full((len(where.starts), tokens.shape[1]), -torch.inf, device=tokens.device)
        return empty.index_reduce_(0, where.owners, tokens, "amax")
    if name == "weighted_mean":
        weights = (_positions(where) + 1).float()
        return _sums(tokens * weights[:, None], where) / _sums(weights[:, None], where)
    count = where.lengths[:, None].float()
    return _sums(tokens, where) / (count.sqrt() if name == "sqrt_len" else count)


def _mean(states: list[Tensor]) -> Tensor:
    return states[0] if len(states) == 1 else (states[0] + states[1]) / 2


def _sums(tokens: Tensor, where: Segments) -> Tensor:
    """(n, d): index_add_ adds row after row, in this order on a CPU; CUDA sorts by its deterministic kernel where asked, so there a loop-free cumsum is avoided."""
    return torch.zeros(len(where.starts), tokens.shape[1], device=tokens.device).index_add_(0, where.owners, tokens)


def _positions(where: Segments) -> Tensor:
    before = torch.cumsum(where.lengths, 0) - where.lengths
    return torch.arange(len(where.owners), device=where.owners.device) - before[where.owners]
