"""Pooling: one vector per text from the token states of packed texts, in float32.

Each vector depends on the text's own tokens only. `POOLINGS` has one entry per pooling. Importing this module
does not import torch, so that settings are checked quickly.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

# Hidden states have numbers: 0 is the embedding layer's output, 1 the first layer's. This number stands for
# the rows of the word table.
TABLE_STATE = -1
_BLOCK_TOKENS = 1 << 16  # tokens of one text summed together: 256 MB of vectors at 1,024 dimensions
NGRAMS = "ngrams"  # pooling with layers of its own, see `layers/ngrams.py`


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
    """(tokens,) position of each of these tokens in its text; the tokens of a prompt count, too"""


@dataclass(frozen=True)
class Pooling:
    """One pooling: the states that it reads, how it reduces them, and the encoders that allow it."""

    name: str
    reduce: "Callable[[Tensor, Segments], Tensor]"
    """maps the states (tokens, d) of a buffer and its pooled tokens to vectors (n, out)"""
    layers: tuple[int, ...] | None = (-1,)
    """number of the hidden state to read, or numbers of two states to average; negative ones count from the
    last. None: the rows of the word table"""
    token: Literal["first", "last", "mask"] | None = None
    """the only token that is read; None: all tokens, except those that `encoder.exclude` leaves out"""
    words: bool = False
    """allowed for word vectors, which have one layer and no token that represents the text"""
    sequences: bool = False
    """allowed for recurrent and convolutional encoders, whose word vectors and layers differ in width"""
    sif: bool = False
    """allowed with `encoder.sif`, which weights tokens"""
    st_name: str | None = None
    """`pooling_mode` in a configuration of sentence-transformers; None: that library has no such pooling"""
    st_flag: str | None = None
    """key of the flag in the older form of that configuration, without its prefix `pooling_mode_`"""


def find_segments(
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
        skip: number of leading tokens (a prompt) that are not pooled, unless the text has no others.
        put: copies an array to the device.
        kept: (tokens,) bool, text after text: True for tokens to pool, None for all. If it is False for all
            tokens of a text, all of them are pooled.
    """
    skipped = np.where(lengths > skip, skip, 0)
    counts = lengths - skipped
    before = np.cumsum(counts) - counts
    positions = np.arange(counts.sum()) + np.repeat(skipped - before, counts)
    indices = positions + np.repeat(starts, counts)
    if kept is not None:
        owners = np.repeat(np.arange(len(counts)), counts)
        chosen = kept[positions + np.repeat(np.cumsum(lengths) - lengths, counts)]
        has_none = np.bincount(owners, chosen, len(counts)) == 0
        chosen = chosen | has_none[owners]
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
    """Return the numbers of the hidden states that the poolings read.

    0 is the embedding layer's output, `layers` the last layer's output, TABLE_STATE the word table's rows.
    """
    return {number for name in poolings for number in _numbers(POOLINGS[name], layers)}


def pool(name: str, states: "Mapping[int, Tensor]", layers: int, segments: Segments) -> "Tensor":
    """Pool hidden states into one vector per text.

    Sums run token after token, so a text's bits do not depend on the other texts. `cls_mlp` pools like `cls`,
    and `ngrams` like `mean`; the caller applies their layers.

    Args:
        name: key of POOLINGS.
        states: hidden states (tokens, d) by number.
        layers: number of layers of the model.
        segments: tokens to pool.

    Returns:
        (n, out) float32, or float64 for float64 states.
    """
    chosen = [states[number] for number in _numbers(POOLINGS[name], layers)]
    averaged = (
        chosen[0] if len(chosen) == 1 else (at_least_float32(chosen[0]) + at_least_float32(chosen[1])) / 2
    )
    return POOLINGS[name].reduce(averaged, segments)


def at_least_float32(x: "Tensor") -> "Tensor":
    """Convert to float32; float64 stays float64."""
    import torch

    return x if x.dtype == torch.float64 else x.float()


def _numbers(pooling: Pooling, layers: int) -> list[int]:
    return [TABLE_STATE] if pooling.layers is None else [number % (layers + 1) for number in pooling.layers]


def _first(states: "Tensor", segments: Segments) -> "Tensor":
    return at_least_float32(states[segments.firsts])


def _last(states: "Tensor", segments: Segments) -> "Tensor":
    return at_least_float32(states[segments.lasts])


def _masked(states: "Tensor", segments: Segments) -> "Tensor":
    assert len(segments.indices) == len(segments.firsts), "one mask token per text, as a template has"
    return at_least_float32(states[segments.indices])


def _ends(states: "Tensor", segments: Segments) -> "Tensor":
    """Return the last state of each direction; a state has the values of both directions side by side."""
    import torch

    forwards, backwards = states.chunk(2, dim=1)
    return torch.cat([_last(forwards, segments), _first(backwards, segments)], dim=1)


def _mean(states: "Tensor", segments: Segments) -> "Tensor":
    return _sum(states, segments) / segments.counts[:, None].float()


def _sqrt_len(states: "Tensor", segments: Segments) -> "Tensor":
    return _sum(states, segments) / segments.counts[:, None].float().sqrt()


def _sum(states: "Tensor", segments: Segments) -> "Tensor":
    if len(segments.indices) > _BLOCK_TOKENS and len(segments.counts) == 1:
        return _sum_in_blocks(states, segments.indices)
    return _over_texts("sum", at_least_float32(states[segments.indices]), segments)


def _sum_in_blocks(states: "Tensor", indices: "Tensor") -> "Tensor":
    """Return the sum (1, d) of one text, bit for bit as `_over_texts` does: each block begins with the
    previous sum.
    """
    import torch

    total = None
    for block in indices.split(_BLOCK_TOKENS):
        tokens = at_least_float32(states[block])
        tokens = tokens if total is None else torch.cat([total, tokens])
        lengths = torch.tensor([len(tokens)], device=tokens.device)
        total = torch.segment_reduce(tokens, "sum", lengths=lengths, axis=0, unsafe=True)
    assert total is not None
    return total


def _weighted_mean(states: "Tensor", segments: Segments) -> "Tensor":
    """Average with weights that grow with the position in the text, prompt included (Muennighoff 2022)."""
    weights = (segments.positions + 1).float()[:, None]
    sums = _over_texts("sum", at_least_float32(states[segments.indices]) * weights, segments)
    return sums / _over_texts("sum", weights, segments)


def _max(states: "Tensor", segments: Segments) -> "Tensor":
    return _over_texts("max", at_least_float32(states[segments.indices]), segments)


def _over_texts(operation: str, tokens: "Tensor", segments: Segments) -> "Tensor":
    """Reduce the tokens of each text to one row: (n, d)."""
    import torch

    # unsafe: without a check of the counts, which would wait for the GPU
    return torch.segment_reduce(tokens, operation, lengths=segments.counts, axis=0, unsafe=True)


# poolings of sentence-transformers in the order in which it concatenates them
POOLINGS: Mapping[str, Pooling] = {
    pooling.name: pooling
    for pooling in (
        Pooling("cls", _first, token="first", st_name="cls", st_flag="cls_token"),
        Pooling("cls_mlp", _first, token="first"),
        Pooling("max", _max, words=True, sequences=True, st_name="max", st_flag="max_tokens"),
        Pooling("mean", _mean, words=True, sequences=True, sif=True, st_name="mean", st_flag="mean_tokens"),
        Pooling(
            "sqrt_len",
            _sqrt_len,
            words=True,
            sequences=True,
            sif=True,
            st_name="mean_sqrt_len_tokens",
            st_flag="mean_sqrt_len_tokens",
        ),
        Pooling(
            "weighted_mean",
            _weighted_mean,
            words=True,
            sequences=True,
            st_name="weightedmean",
            st_flag="weightedmean_tokens",
        ),
        Pooling("sum", _sum, words=True, sequences=True, sif=True),
        Pooling("last", _last, token="last", sequences=True, st_name="lasttoken", st_flag="lasttoken"),
        Pooling("first_last", _mean, layers=(1, -1)),
        Pooling("static_last", _mean, layers=(0, -1)),
        Pooling("last2", _mean, layers=(-2, -1)),
        Pooling("static", _mean, layers=(0,), words=True, sif=True),
        Pooling("table", _mean, layers=None, words=True, sequences=True, sif=True),
        Pooling(NGRAMS, _mean),
        Pooling("mask", _masked, token="mask"),
        Pooling("ends", _ends, sequences=True),
    )
}
ST_NAMES = {pooling.st_name: pooling.name for pooling in POOLINGS.values() if pooling.st_name}
"""name of the pooling by its name in sentence-transformers"""
ST_FLAGS = {
    f"pooling_mode_{pooling.st_flag}": pooling.name for pooling in POOLINGS.values() if pooling.st_flag
}
"""name of the pooling by its flag in a configuration of sentence-transformers"""
