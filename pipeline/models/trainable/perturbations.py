"""Views of the same words: permuted positions, and changes of the embedding layer's output (ConSERT: Yan et
al. 2021, section 3.3).

Random numbers are drawn from torch's generator when a view is made, and belong to a text: they do not depend
on the chunks in which the texts are encoded.
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

_LEAST_NORM = 1e-10  # of a token's gradient, as in the published code; without a gradient it is not changed


def shuffled_positions(tokens: Tokens, *, keep_special: bool) -> np.ndarray:
    """Permute the positions of each text's tokens at random: (tokens,) int64.

    With absolute positions and without dropout, this equals another order of the tokens.

    Args:
        tokens: of the texts.
        keep_special: the first and the last token of each text keep their positions.
    """
    draws = torch.rand(len(tokens.ids), dtype=torch.float64).numpy()
    if keep_special:
        draws[tokens.offsets[1:] - 1] = 2.0
        draws[tokens.offsets[:-1]] = -1.0
    positions = np.empty(len(draws), np.int64)
    positions[np.lexsort((draws, tokens.owners))] = tokens.positions
    return positions


def keeps_special(encoder: nn.Module) -> bool:
    """Return True if special tokens have to keep their positions, because one of them is pooled."""
    pooling: tuple[str, ...] = getattr(getattr(encoder, "folder", None), "pooling", ())
    return any(POOLINGS[name].token in ("first", "last") for name in pooling)


@runtime_checkable
class PerText(Protocol):
    """Change of the embedding layer's output with values for each text of a view."""

    def of_rows(self, indices: np.ndarray) -> "PerText":
        """Select texts."""
        ...

    def __call__(self, x: Tensor, where: Segments) -> Tensor:
        """Change x (tokens, d); see `AtEmbedding`."""
        ...


@dataclass(frozen=True, eq=False)
class Each:
    """The change of each of several views in one pass; None for a view without one."""

    changes: Sequence[PerText | None]
    lengths: Sequence[np.ndarray]
    """for each view, (n,) numbers of tokens of its texts"""

    def __call__(self, x: Tensor, where: Segments) -> Tensor:
        texts = np.cumsum([0, *map(len, self.lengths)]).tolist()
        tokens = np.cumsum([0, *(lengths.sum() for lengths in self.lengths)]).tolist()
        for change, text, token in zip(self.changes, pairwise(texts), pairwise(tokens), strict=True):
            if change is not None:
                by_text = (each[slice(*text)] for each in (where.firsts, where.lasts, where.counts))
                by_token = (each[slice(*token)] for each in (where.indices, where.positions))
                x = change(x, Segments(*by_text, *by_token))
        return x


@dataclass(frozen=True, eq=False)
class Cutoff:
    """Set a proportion of the embedding layer's output to zero, without scaling the rest.

    Either int(rate * n) of the n tokens of a text, special ones included, or int(rate * d) of the d columns,
    the same in all tokens of a text.
    """

    of: Literal["tokens", "features"]
    rate: float
    lengths: np.ndarray
    """(n,) number of tokens of each text"""
    seeds: np.ndarray
    """(n,) int64: seed of each text"""

    def of_rows(self, indices: np.ndarray) -> "Cutoff":
        """Select texts."""
        return replace(self, lengths=self.lengths[indices], seeds=self.seeds[indices])

    def __call__(self, x: Tensor, where: Segments) -> Tensor:
        """Return x (tokens, d) with zeros."""
        if self.of == "tokens":
            marks = np.concatenate(list(map(self._kept, self.lengths.tolist(), self.seeds.tolist())))
            kept = torch.from_numpy(marks).to(x.device, x.dtype)[:, None]
        else:
            marks = np.stack([self._kept(x.shape[1], seed) for seed in self.seeds.tolist()])
            columns = torch.from_numpy(marks).to(x.device, x.dtype)
            kept = torch.repeat_interleave(columns, where.counts, dim=0, output_size=len(where.indices))
        return x * x.new_ones(len(x), kept.shape[1]).index_copy(0, where.indices, kept)

    def _kept(self, count: int, seed: int) -> np.ndarray:
        """Return a (count,) mask of the values that stay."""
        kept = np.ones(count, bool)
        kept[np.random.default_rng(seed).permutation(count)[: int(self.rate * count)]] = False
        return kept


def cutoff(tokens: Tokens, of: Literal["tokens", "features"], rate: float) -> Cutoff:
    """Return a cut-off with a new seed for each text. ConfigError if the rate is not in (0, 1)."""
    if not 0 < rate < 1:
        raise ConfigError(f"cut-off of {of}", "a rate above 0 and below 1", f"{rate}", "set another rate")
    return Cutoff(of, rate, tokens.lengths, torch.randint(2**62, (len(tokens),)).numpy())


class Probe:
    """Keep the embedding layer's output as a leaf of the graph, for the gradient of a loss."""

    leaf: Tensor
    where: Segments

    def __call__(self, x: Tensor, where: Segments) -> Tensor:
        self.leaf, self.where = x.detach().requires_grad_(), where
        return self.leaf

    def ascent_step(self, loss: Tensor, epsilon: float) -> "Shift":
        """Return a step of length epsilon for each token, in the direction in which the loss rises most."""
        (gradient,) = torch.autograd.grad(loss, self.leaf)
        return Shift(epsilon * F.normalize(gradient[self.where.indices], dim=1, eps=_LEAST_NORM))


@dataclass(frozen=True, eq=False)
class Shift:
    """Add vectors to the embedding layer's output."""

    by: Tensor
    """(tokens, d), in the order of the texts"""

    def __call__(self, x: Tensor, where: Segments) -> Tensor:
        return x.index_add(0, where.indices, self.by.to(x.dtype))
