"""Pooling: one vector per text from the token states of packed texts, in float32.

Each vector depends on the text's own tokens only.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

TABLE_STATE = -1  # number of the word table's rows; 0 is the embedding layer's output, 1 the first layer's
# hidden states that a pooling averages; every other pooling reads the last
_AVERAGED = {"first_last": (1, -1), "static_last": (0, -1), "last2": (-2, -1), "static": (0,)}


@dataclass(frozen=True)
class Segments:
    """Indices of the pooled tokens of n texts in a buffer, int64.

    Computed on the host, so that pooling never waits for a GPU.
    """

    firsts: Tensor
    """(n,) first pooled token of each text"""
    lasts: Tensor
    """(n,) last pooled token of each text"""
    counts: Tensor
    """(n,) pooled tokens, each at least 1"""
    places: Tensor
    """(tokens,) all pooled tokens, text after text"""
    positions: Tensor
    """(tokens,) position of each in its own text; the tokens of a prompt count"""


def segments(
    starts: np.ndarray,
    lengths: np.ndarray,
    skip: int,
    put: Callable[[np.ndarray], Tensor],
    kept: np.ndarray | None = None,
) -> Segments:
    """Find the tokens to pool.

    Args:
        starts: (n,) first token of each text in the buffer.
        lengths: (n,) tokens of each text, at least 1.
        skip: tokens at the beginning (a prompt) that are not pooled, unless the text has no others.
        put: copies an array to the device.
        kept: (tokens,) bool, text after text: tokens to pool. A text without any pools all of its tokens.
    """
    skipped = np.where(lengths > skip, skip, 0)
    counts = lengths - skipped
    before = np.cumsum(counts) - counts
    positions = np.arange(counts.sum()) + np.repeat(skipped - before, counts)
    places = positions + np.repeat(starts, counts)
    if kept is not None:
        owners = np.repeat(np.arange(len(counts)), counts)
        chosen = kept[positions + np.repeat(np.cumsum(lengths) - lengths, counts)]
        chosen = chosen | (np.bincount(owners, chosen, len(counts)) == 0)[owners]
        counts = np.bincount(owners[chosen], minlength=len(counts))
        positions, places = positions[chosen], places[chosen]
    lasts = starts + lengths - 1
    return Segments(put(starts + skipped), put(lasts), put(counts), put(places), put(positions))


def layers_of(poolings: Sequence[str], layers: int) -> set[int]:
    """Numbers of the hidden states that the poolings read.

    0 is the embedding layer's output, `layers` the last layer's output, TABLE_STATE the word table's rows.
    """
    return {number for name in poolings for number in _numbers(name, layers)}


def pool(name: str, states: Mapping[int, Tensor], layers: int, where: Segments) -> Tensor:
    """Pool hidden states into one vector per text.

    Sums run token after token, so a text's bits do not depend on the other texts. `cls_mlp` equals
    `cls` here; its layer is applied later.

    Args:
        name: of the pooling.
        states: hidden states (tokens, d) by number.
        layers: number of layers of the model.
        where: tokens to pool.

    Returns:
        (n, d) float32, or float64 for float64 states.
    """
    chosen = [states[number] for number in _numbers(name, layers)]
    if name in ("cls", "cls_mlp"):
        return wide(chosen[0][where.firsts])
    if name == "last":
        return wide(chosen[0][where.lasts])
    if name == "mask":  # the one token of each text that is kept
        assert len(where.places) == len(where.firsts), "texts without a template"
        return wide(chosen[0][where.places])
    if name == "ends":  # last state of each of the two directions
        onward, backward = wide(chosen[0]).chunk(2, dim=1)
        return torch.cat([onward[where.lasts], backward[where.firsts]], dim=1)
    tokens = _mean([wide(state[where.places]) for state in chosen])
    if name == "max":
        return torch.segment_reduce(tokens, "max", lengths=where.counts, axis=0, unsafe=True)
    if name == "weighted_mean":  # Muennighoff 2022: weights grow with the position, which counts the prompt
        weights = (where.positions + 1).float()[:, None]
        return _sums(tokens * weights, where) / _sums(weights, where)
    divisor = where.counts[:, None].float()
    return _sums(tokens, where) / (divisor.sqrt() if name == "sqrt_len" else divisor)


def _numbers(name: str, layers: int) -> list[int]:
    if name == "table":
        return [TABLE_STATE]
    return [number % (layers + 1) for number in _AVERAGED.get(name, (-1,))]


def wide(x: Tensor) -> Tensor:
    """Convert to float32; float64 stays float64."""
    return x if x.dtype == torch.float64 else x.float()


def _mean(states: list[Tensor]) -> Tensor:
    return states[0] if len(states) == 1 else (states[0] + states[1]) / 2


def _sums(tokens: Tensor, where: Segments) -> Tensor:
    """Sum over each text, (n, d). `unsafe` skips a check of the counts that would wait for the GPU."""
    return torch.segment_reduce(tokens, "sum", lengths=where.counts, axis=0, unsafe=True)
