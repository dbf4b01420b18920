"""Token states of packed texts become one vector per text, in float32, each from its own tokens alone."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

TABLE_STATE = -1  # number of the word table's rows, beside 0 for the embedding layer's output and so on
_AVERAGED = {
    "first_last": (1, -1),
    "static_last": (0, -1),
    "last2": (-2, -1),
    "static": (0,),
}  # hidden states; every other pooling reads the last


@dataclass(frozen=True)
class Segments:
    """Where the pooled tokens of n texts lie in a buffer; made on the host, so that a GPU is never asked how many there are. All int64."""

    firsts: Tensor
    """(n,) first pooled token of each text"""
    lasts: Tensor
    """(n,)"""
    counts: Tensor
    """(n,) pooled tokens, each at least 1"""
    places: Tensor
    """(tokens,) all pooled tokens, text after text"""
    positions: Tensor
    """(tokens,) place of each in its own text, counted from the text's first token, a prompt's included"""


def segments(
    starts: np.ndarray,
    lengths: np.ndarray,
    skip: int,
    put: Callable[[np.ndarray], Tensor],
    kept: np.ndarray | None = None,
) -> Segments:
    """Texts at `starts` of `lengths` tokens (at least 1); their first `skip` (a prompt's) stay out, except where nothing else is there.

    kept (tokens,) bool, text after text: of the others only these are pooled, except where a text has none of them. `put` brings an array to the device.
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
        counts, positions, places = (
            np.bincount(owners[chosen], minlength=len(counts)),
            positions[chosen],
            places[chosen],
        )
    return Segments(
        put(starts + skipped), put(starts + lengths - 1), put(counts), put(places), put(positions)
    )


def layers_of(poolings: Sequence[str], layers: int) -> set[int]:
    """Numbers of the hidden states that the poolings read: 0 is the embedding layer's output, `layers` the last layer's, TABLE_STATE the word table's rows."""
    return {number for name in poolings for number in _numbers(name, layers)}


def pool(name: str, states: Mapping[int, Tensor], layers: int, where: Segments) -> Tensor:
    """(n, d) of pooling `name` over the hidden states (tokens, d), given by number; `cls_mlp` is `cls` here, its layer comes after. float32, float64 of float64.

    Sums run token after token, so a text's bits do not depend on its neighbours.
    """
    chosen = [states[number] for number in _numbers(name, layers)]
    if name in ("cls", "cls_mlp"):
        return wide(chosen[0][where.firsts])
    if name == "last":
        return wide(chosen[0][where.lasts])
    if name == "mask":  # the one token of each text that is kept
        assert len(where.places) == len(where.firsts), "texts without a template"
        return wide(chosen[0][where.places])
    if name == "ends":  # what each of two directions says when it has read the text
        onward, backward = wide(chosen[0]).chunk(2, dim=1)
        return torch.cat([onward[where.lasts], backward[where.firsts]], dim=1)
    tokens = _mean([wide(state[where.places]) for state in chosen])
    if name == "max":
        return torch.segment_reduce(tokens, "max", lengths=where.counts, axis=0, unsafe=True)
    if (
        name == "weighted_mean"
    ):  # Muennighoff 2022: later tokens weigh more; a prompt left out still counts as positions
        weights = (where.positions + 1).float()[:, None]
        return _sums(tokens * weights, where) / _sums(weights, where)
    divisor = where.counts[:, None].float()
    return _sums(tokens, where) / (divisor.sqrt() if name == "sqrt_len" else divisor)


def _numbers(name: str, layers: int) -> list[int]:
    return (
        [TABLE_STATE] if name == "table" else [number % (layers + 1) for number in _AVERAGED.get(name, (-1,))]
    )


def wide(x: Tensor) -> Tensor:
    """float32, or float64 as it is."""
    return x if x.dtype == torch.float64 else x.float()


def _mean(states: list[Tensor]) -> Tensor:
    return states[0] if len(states) == 1 else (states[0] + states[1]) / 2


def _sums(tokens: Tensor, where: Segments) -> Tensor:
    """(n, d); unsafe leaves out the check that the counts add up, for which a GPU would have to stop."""
    return torch.segment_reduce(tokens, "sum", lengths=where.counts, axis=0, unsafe=True)
