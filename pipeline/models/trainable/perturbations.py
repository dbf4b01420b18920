"""Other views of the same words: tokens at other places, and values taken out of, or added to, the embedding
layer's output (Yan et al. 2021, section 3.3).

Every draw comes from torch's generator when a view is made, and belongs to a text: so it is the same in
whichever chunks the texts are encoded, and each time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.errors import ConfigError
from pipeline.models.layers.pooling import POOLINGS, Segments
from pipeline.text.tokens.tokens import Tokens

_LEAST_NORM = 1e-10  # of a token's gradient, as in the published program: a token without one is left alone


def shuffled_positions(tokens: Tokens, *, keep_special: bool) -> np.ndarray:
    """(tokens,) int64: the positions of each text's tokens, permuted at random among them.

    keep_special: the first and the last token of each text keep theirs. With absolute positions and no
        dropout, this is the text with its tokens in another order.
    """
    draws = torch.rand(len(tokens.ids), dtype=torch.float64).numpy()
    if keep_special:
        draws[tokens.offsets[1:] - 1] = 2.0
        draws[tokens.offsets[:-1]] = -1.0
    positions = np.empty(len(draws), np.int64)
    positions[np.lexsort((draws, tokens.owners))] = tokens.positions
    return positions


def keeps_special(encoder: nn.Module) -> bool:
    """Whether shuffling should leave the special tokens where they are: where one of them stands for the
    text.
    """
    pooling: tuple[str, ...] = getattr(getattr(encoder, "folder", None), "pooling", ())
    return any(POOLINGS[name].token in ("first", "last") for name in pooling)


@runtime_checkable
class PerText(Protocol):
    """A change at the embeddings that knows the texts of its view, one by one."""

    def of_rows(self, places: np.ndarray) -> "PerText":
        """For the texts at those places alone."""
        ...

    def __call__(self, x: Tensor, where: Segments) -> Tensor:
        """As of AtEmbedding."""
        ...


@dataclass(frozen=True, eq=False)
class Each:
    """Of several views in one pass, each its own change, or none."""

    changes: Sequence[PerText | None]
    lengths: Sequence[np.ndarray]
    """(n,) tokens of the texts of each view"""

    def __call__(self, x: Tensor, where: Segments) -> Tensor:
        texts = np.cumsum([0, *map(len, self.lengths)]).tolist()
        tokens = np.cumsum([0, *(lengths.sum() for lengths in self.lengths)]).tolist()
        for change, text, token in zip(self.changes, pairwise(texts), pairwise(tokens), strict=True):
            if change is not None:
                x = change(x, _part(where, slice(*text), slice(*token)))
        return x


def _part(where: Segments, texts: slice, tokens: slice) -> Segments:
    return Segments(
        where.firsts[texts],
        where.lasts[texts],
        where.counts[texts],
        where.indices[tokens],
        where.positions[tokens],
    )


@dataclass(frozen=True, eq=False)
class Cutoff:
    """Zeros in a share of the embedding layer's output, nothing scaled up for it: whole tokens of a text, or
    whole columns, the same ones in all tokens of a text.

    Of n tokens (special ones too) int(rate * n) are taken out, and of d columns int(rate * d). It belongs to
    the texts of one view.
    """

    of: Literal["tokens", "features"]
    rate: float
    lengths: np.ndarray
    """(n,) tokens of each text"""
    seeds: np.ndarray
    """(n,) int64: each text's own draw"""

    def of_rows(self, places: np.ndarray) -> "Cutoff":
        """For the texts at those places alone."""
        return replace(self, lengths=self.lengths[places], seeds=self.seeds[places])

    def __call__(self, x: Tensor, where: Segments) -> Tensor:
        """x (tokens, d) with its zeros."""
        if self.of == "tokens":
            marks = [
                self._kept(length, seed)
                for length, seed in zip(self.lengths.tolist(), self.seeds.tolist(), strict=True)
            ]
            kept = torch.from_numpy(np.concatenate(marks)).to(x.device, x.dtype)[:, None]
        else:
            columns = torch.from_numpy(
                np.stack([self._kept(x.shape[1], seed) for seed in self.seeds.tolist()])
            ).to(x.device, x.dtype)
            kept = torch.repeat_interleave(columns, where.counts, dim=0, output_size=len(where.indices))
        return x * x.new_ones(len(x), kept.shape[1]).index_copy(0, where.indices, kept)

    def _kept(self, count: int, seed: int) -> np.ndarray:
        """(count,) bool."""
        kept = np.ones(count, bool)
        kept[np.random.default_rng(seed).permutation(count)[: int(self.rate * count)]] = False
        return kept


def cutoff(tokens: Tokens, of: Literal["tokens", "features"], rate: float) -> Cutoff:
    """A new draw for each text. ConfigError on a rate outside (0, 1)."""
    if not 0 < rate < 1:
        raise ConfigError(f"cut-off of {of}", "a rate above 0 and below 1", f"{rate}", "set another rate")
    return Cutoff(of, rate, tokens.lengths, torch.randint(2**62, (len(tokens),)).numpy())


class Probe:
    """Leaves the embedding layer's output as it is, and holds it as a leaf, of which a loss has a gradient."""

    leaf: Tensor
    where: Segments

    def __call__(self, x: Tensor, where: Segments) -> Tensor:
        self.leaf, self.where = x.detach().requires_grad_(), where
        return self.leaf

    def uphill(self, loss: Tensor, epsilon: float) -> "Shift":
        """A step of length epsilon of each token, in the direction in which the loss rises most."""
        (gradient,) = torch.autograd.grad(loss, self.leaf)
        rows = gradient[self.where.indices]
        return Shift(epsilon * F.normalize(rows, dim=1, eps=_LEAST_NORM))


@dataclass(frozen=True, eq=False)
class Shift:
    """Adds something to each token's output of the embedding layer."""

    by: Tensor
    """(tokens, d), text after text"""

    def __call__(self, x: Tensor, where: Segments) -> Tensor:
        return x.index_add(0, where.indices, self.by.to(x.dtype))
