"""Perturbed views of a text: permuted positions, and changes of the embedding layer's output.

ConSERT (Yan et al. 2021), section 3.3. Random numbers are drawn from torch's generator for each text when a
view is created, so they do not depend on the chunks in which the texts are encoded.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.errors import ConfigError
from pipeline.models.spec.pooling import POOLINGS, Segments
from pipeline.text.tokens.tokens import Tokens

# the norm of a token's gradient counts as at least this (ConSERT's code), so that 0 gives a zero step
_MIN_NORM = 1e-10


def shuffled_positions(tokens: Tokens, *, keep_special: bool) -> np.ndarray:
    """Permute the positions of each text's tokens at random: (tokens,) int64.

    With absolute positions and without dropout, this is equal to permuting the tokens.

    Args:
        tokens: tokens of the texts.
        keep_special: the first and the last token of each text keep their positions.
    """
    keys = torch.rand(len(tokens.ids), dtype=torch.float64).numpy()
    if keep_special:  # keys outside [0, 1) sort first and last
        keys[tokens.offsets[1:] - 1] = 2.0
        keys[tokens.offsets[:-1]] = -1.0
    positions = np.empty(len(keys), np.int64)
    positions[np.lexsort((keys, tokens.owners))] = tokens.positions
    return positions


def keeps_special(encoder: nn.Module) -> bool:
    """Return True if special tokens have to keep their positions, because one of them is pooled.

    False for an encoder without a folder.
    """
    return pools_special(getattr(getattr(encoder, "folder", None), "pooling", ()))


def pools_special(pooling: tuple[str, ...]) -> bool:
    """Return True if one of the poolings takes the first or the last token."""
    return any(POOLINGS[name].token in ("first", "last") for name in pooling)


@runtime_checkable
class PerTextChange(Protocol):
    """Change of the embedding layer's output; each text has its own values, so it can be split by text."""

    def of_rows(self, indices: np.ndarray) -> "PerTextChange":
        """Select texts."""

    def __call__(self, x: Tensor, segments: Segments) -> Tensor:
        """Change x (tokens, d); see `AtEmbedding`."""


@dataclass(frozen=True, eq=False)
class ChangePerView:
    """Changes of several views that are encoded in one pass."""

    changes: Sequence[PerTextChange | None]
    """change of each view; None: the view is not changed"""
    lengths: Sequence[np.ndarray]
    """for each view, (n,) lengths of its texts, in tokens"""

    def __call__(self, x: Tensor, segments: Segments) -> Tensor:
        first_text = first_token = 0
        for change, lengths in zip(self.changes, self.lengths, strict=True):
            texts = slice(first_text, first_text + len(lengths))
            tokens = slice(first_token, first_token + int(lengths.sum()))
            if change is not None:
                x = change(x, _select(segments, texts, tokens))
            first_text, first_token = texts.stop, tokens.stop
        return x


def _select(segments: Segments, texts: slice, tokens: slice) -> Segments:
    """Select adjacent texts, and their tokens, of segments."""
    return Segments(
        firsts=segments.firsts[texts],
        lasts=segments.lasts[texts],
        counts=segments.counts[texts],
        indices=segments.indices[tokens],
        positions=segments.positions[tokens],
    )


@dataclass(frozen=True, eq=False)
class Cutoff:
    """Set a proportion of the embedding layer's output to zero, without scaling the rest.

    int(rate * n) of the n tokens of a text, special ones included, are set to zero, or int(rate * d) of the d
    features, the same in all tokens of a text.
    """

    zeroed: Literal["tokens", "features"]
    rate: float
    lengths: np.ndarray
    """(n,) number of tokens of each text"""
    seeds: np.ndarray
    """(n,) int64: seed of each text"""

    def of_rows(self, indices: np.ndarray) -> "Cutoff":
        """Select texts."""
        return replace(self, lengths=self.lengths[indices], seeds=self.seeds[indices])

    def __call__(self, x: Tensor, segments: Segments) -> Tensor:
        """Return x (tokens, d) with a part set to zero."""
        if self.zeroed == "tokens":
            mask = np.concatenate(list(map(self._keep_mask, self.lengths.tolist(), self.seeds.tolist())))
            kept = torch.from_numpy(mask).to(x.device, x.dtype)[:, None]
        else:
            mask = np.stack([self._keep_mask(x.shape[1], seed) for seed in self.seeds.tolist()])
            features = torch.from_numpy(mask).to(x.device, x.dtype)
            kept = torch.repeat_interleave(
                features, segments.counts, dim=0, output_size=len(segments.indices)
            )
        # rows of x outside the segments, such as padding, are multiplied by 1
        factors = x.new_ones(len(x), kept.shape[1]).index_copy(0, segments.indices, kept)
        return x * factors

    def _keep_mask(self, count: int, seed: int) -> np.ndarray:
        """Draw a (count,) mask of the values that are kept."""
        kept = np.ones(count, bool)
        kept[np.random.default_rng(seed).permutation(count)[: int(self.rate * count)]] = False
        return kept


def cutoff(tokens: Tokens, zeroed: Literal["tokens", "features"], rate: float) -> Cutoff:
    """Return a cutoff with a new seed for each text.

    Raises:
        ConfigError: the rate is not between 0 and 1.
    """
    if not 0 < rate < 1:
        raise ConfigError(f"cutoff of {zeroed}", "a rate above 0 and below 1", f"{rate}", "set another rate")
    return Cutoff(zeroed, rate, tokens.lengths, torch.randint(2**62, (len(tokens),)).numpy())


class Probe:
    """Store the embedding layer's output as a leaf of the graph, for the gradient of a loss."""

    leaf: Tensor
    segments: Segments

    def __call__(self, x: Tensor, segments: Segments) -> Tensor:
        self.leaf, self.segments = x.detach().requires_grad_(), segments
        return self.leaf

    def ascent_step(self, loss: Tensor, epsilon: float) -> "Shift":
        """Return a step of length epsilon for each token, in the direction of its gradient of the loss."""
        (gradient,) = torch.autograd.grad(loss, self.leaf)
        return Shift(epsilon * F.normalize(gradient[self.segments.indices], dim=1, eps=_MIN_NORM))


@dataclass(frozen=True, eq=False)
class Shift:
    """Add vectors to the embedding layer's output."""

    step: Tensor
    """(tokens, d) the vectors that are added, in the order of the texts"""

    def __call__(self, x: Tensor, segments: Segments) -> Tensor:
        return x.index_add(0, segments.indices, self.step.to(x.dtype))
