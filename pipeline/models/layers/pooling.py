"""Pooling: one vector per text from the token states of packed texts, in float32.

Each vector depends on the text's own tokens only. `POOLINGS` has one entry per pooling. It is read without
torch, which is imported where states are pooled.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

TABLE_STATE = -1  # number of the word table's rows; 0 is the embedding layer's output, 1 the first layer's


@dataclass(frozen=True)
class Segments:
    """Indices of the pooled tokens of n texts in a buffer, int64.

    Computed on the host, so that pooling never waits for a GPU.
    """

    firsts: "Tensor"
    """(n,) first pooled token of each text"""
    lasts: "Tensor"
    """(n,) last pooled token of each text"""
    counts: "Tensor"
    """(n,) pooled tokens, each at least 1"""
    indices: "Tensor"
    """(tokens,) all pooled tokens, text after text"""
    positions: "Tensor"
    """(tokens,) position of each in its own text; the tokens of a prompt count"""


@dataclass(frozen=True)
class Pooling:
    """One pooling: the states it reads, the vector it makes of them, and the encoders that can have it."""

    name: str
    reduce: "Callable[[Tensor, Segments], Tensor]"
    """maps the states (tokens, d) of a buffer and its pooled tokens to vectors (n, out)"""
    layers: tuple[int, ...] | None = (-1,)
    """numbers of one hidden state or of two to average, counted from the last one if negative; None: the rows
    of the word table"""
    token: Literal["first", "last", "mask"] | None = None
    """the one token that is read; None: it reads several, of which `encoder.exclude` can leave some out"""
    words: bool = False
    """word vectors, which have one layer and no token that represents the text, can have it"""
    recurrent: bool = False
    """recurrent encoders, whose word vectors and layers differ in width, can have it"""
    sif: bool = False
    """`encoder.sif` can weight its tokens"""
    st_name: str | None = None
    """`pooling_mode` in a configuration of sentence-transformers; None: that library has no such pooling"""
    st_flag: str | None = None
    """key in the older form of that configuration, one flag per pooling, after `pooling_mode_`"""


def segments(
    starts: np.ndarray,
    lengths: np.ndarray,
    skip: int,
    put: "Callable[[np.ndarray], Tensor]",
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
    indices = positions + np.repeat(starts, counts)
    if kept is not None:
        owners = np.repeat(np.arange(len(counts)), counts)
        chosen = kept[positions + np.repeat(np.cumsum(lengths) - lengths, counts)]
        chosen = chosen | (np.bincount(owners, chosen, len(counts)) == 0)[owners]
        counts = np.bincount(owners[chosen], minlength=len(counts))
        positions, indices = positions[chosen], indices[chosen]
    return Segments(
        firsts=put(starts + skipped),
        lasts=put(starts + lengths - 1),
        counts=put(counts),
        indices=put(indices),
        positions=put(positions),
    )


def layers_of(poolings: Sequence[str], layers: int) -> set[int]:
    """Numbers of the hidden states that the poolings read.

    0 is the embedding layer's output, `layers` the last layer's output, TABLE_STATE the word table's rows.
    """
    return {number for name in poolings for number in _numbers(POOLINGS[name], layers)}


def pool(name: str, states: "Mapping[int, Tensor]", layers: int, where: Segments) -> "Tensor":
    """Pool hidden states into one vector per text.

    Sums run token after token, so a text's bits do not depend on the other texts. `cls_mlp` equals
    `cls` here; its layer is applied later.

    Args:
        name: of the pooling.
        states: hidden states (tokens, d) by number.
        layers: number of layers of the model.
        where: tokens to pool.

    Returns:
        (n, out) float32, or float64 for float64 states.
    """
    chosen = [states[number] for number in _numbers(POOLINGS[name], layers)]
    averaged = chosen[0] if len(chosen) == 1 else (wide(chosen[0]) + wide(chosen[1])) / 2
    return POOLINGS[name].reduce(averaged, where)


def wide(x: "Tensor") -> "Tensor":
    """Convert to float32; float64 stays float64."""
    import torch

    return x if x.dtype == torch.float64 else x.float()


def _numbers(pooling: Pooling, layers: int) -> list[int]:
    return [TABLE_STATE] if pooling.layers is None else [number % (layers + 1) for number in pooling.layers]


def _first(states: "Tensor", where: Segments) -> "Tensor":
    return wide(states[where.firsts])


def _last(states: "Tensor", where: Segments) -> "Tensor":
    return wide(states[where.lasts])


def _masked(states: "Tensor", where: Segments) -> "Tensor":
    assert len(where.indices) == len(where.firsts), "texts without a template"
    return wide(states[where.indices])


def _ends(states: "Tensor", where: Segments) -> "Tensor":
    """Last state of each of the two directions, whose states are side by side."""
    import torch

    onward, backward = states.chunk(2, dim=1)
    return torch.cat([_last(onward, where), _first(backward, where)], dim=1)


def _mean(states: "Tensor", where: Segments) -> "Tensor":
    return _over_texts("sum", wide(states[where.indices]), where) / where.counts[:, None].float()


def _sqrt_len(states: "Tensor", where: Segments) -> "Tensor":
    return _over_texts("sum", wide(states[where.indices]), where) / where.counts[:, None].float().sqrt()


def _weighted_mean(states: "Tensor", where: Segments) -> "Tensor":
    """Weights grow with the position, which counts the prompt (Muennighoff 2022)."""
    weights = (where.positions + 1).float()[:, None]
    sums = _over_texts("sum", wide(states[where.indices]) * weights, where)
    return sums / _over_texts("sum", weights, where)


def _max(states: "Tensor", where: Segments) -> "Tensor":
    return _over_texts("max", wide(states[where.indices]), where)


def _over_texts(operation: str, tokens: "Tensor", where: Segments) -> "Tensor":
    """Reduce over each text, (n, d). `unsafe` skips a check of the counts that would wait for the GPU."""
    import torch

    return torch.segment_reduce(tokens, operation, lengths=where.counts, axis=0, unsafe=True)


# poolings of sentence-transformers in the order in which it concatenates them
POOLINGS: Mapping[str, Pooling] = {
    pooling.name: pooling
    for pooling in (
        Pooling("cls", _first, token="first", st_name="cls", st_flag="cls_token"),
        Pooling("cls_mlp", _first, token="first"),
        Pooling("max", _max, words=True, recurrent=True, st_name="max", st_flag="max_tokens"),
        Pooling("mean", _mean, words=True, recurrent=True, sif=True, st_name="mean", st_flag="mean_tokens"),
        Pooling(
            "sqrt_len",
            _sqrt_len,
            words=True,
            recurrent=True,
            sif=True,
            st_name="mean_sqrt_len_tokens",
            st_flag="mean_sqrt_len_tokens",
        ),
        Pooling(
            "weighted_mean",
            _weighted_mean,
            words=True,
            recurrent=True,
            st_name="weightedmean",
            st_flag="weightedmean_tokens",
        ),
        Pooling("last", _last, token="last", recurrent=True, st_name="lasttoken", st_flag="lasttoken"),
        Pooling("first_last", _mean, layers=(1, -1)),
        Pooling("static_last", _mean, layers=(0, -1)),
        Pooling("last2", _mean, layers=(-2, -1)),
        Pooling("static", _mean, layers=(0,), words=True, sif=True),
        Pooling("table", _mean, layers=None, words=True, recurrent=True, sif=True),
        Pooling("mask", _masked, token="mask"),
        Pooling("ends", _ends, recurrent=True),
    )
}
ST_NAMES = {pooling.st_name: pooling.name for pooling in POOLINGS.values() if pooling.st_name}
"""name of the pooling by its name in sentence-transformers"""
ST_FLAGS = {
    f"pooling_mode_{pooling.st_flag}": pooling.name for pooling in POOLINGS.values() if pooling.st_flag
}
"""name of the pooling by its flag in a configuration of sentence-transformers"""
