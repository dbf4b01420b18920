"""Attention of packed texts in bfloat16 on a CPU: texts of similar length padded, and multiplied by oneDNN.

torch's own kernel multiplies 32 or 64 queries at a time; for so few, the calls of its matrix library take
longer than the products.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pipeline.models.layers.padded_mask import Heads, Sight

MOST_PADDED = 512
"""longest text to pad, in tokens: a text of 1,000 tokens is faster in torch's kernel"""
# padded lengths are multiples of this: otherwise softmax computes the rest of a row value by value
_MULTIPLE = 16
# Scores computed together. They take 0.5 MB in bfloat16 and 1 MB in float32, and so stay in the cache.
_SCORES = 2**18


@dataclass(frozen=True)
class PaddedGroup:
    """Adjacent texts that are padded to the same length, which each text's own length determines.

    The other texts of a group change no bit of a text.
    """

    start: int
    """first token of the group"""
    stop: int
    """token after the last one of the group"""
    texts: int
    """number of texts"""
    length: int
    """tokens of a padded text"""
    sources: Tensor
    """(texts * length,) int64, token of the group at each padded position. A text's last token is repeated;
    any finite values would do, because padding gets a probability of exactly 0"""
    places: Tensor
    """(stop - start,) int64, padded position of each token"""
    mask: Tensor
    """(texts, 1, length) float32, -inf for padding, else 0.

    Every text has a token, so no row is all -inf, whose softmax would be NaN
    """

    def attend(self, heads: Heads, sight: Sight) -> Tensor:
        """Attend from each token to all tokens of its text (Vaswani et al. 2017, eq. 1).

        Products of queries and keys are rounded to bfloat16, as oneDNN returns them. They are scaled and
        masked in float32, so that scaled scores are not rounded again. Probabilities are rounded once.

        Args:
            heads: heads of all texts, (T, heads, head width) each, bfloat16.
            sight: must have no limits; only its scale is used.

        Returns:
            (stop - start, heads * head width)
        """
        count, width = heads.queries.shape[1:]
        queries, keys, values = map(self._pad, heads)
        served = len(queries) // len(keys)
        if served > 1:
            keys, values = (part.repeat_interleave(served, dim=0) for part in (keys, values))
        scale = width**-0.5 if sight.scale is None else sight.scale
        mask = self.mask.repeat_interleave(count, dim=0)
        attended = torch.empty_like(values)
        step = _heads_at_once(count, self.length)
        scores = queries.new_empty(min(step, len(queries)), self.length, self.length)
        exact = torch.empty_like(scores, dtype=torch.float32)
        for first in range(0, len(queries), step):
            part = slice(first, first + step)
            used = slice(0, len(queries[part]))
            torch.bmm(queries[part], keys[part].transpose(1, 2), out=scores[used])
            torch.add(mask[part], scores[used], alpha=scale, out=exact[used])
            torch.softmax(exact[used], -1, out=exact[used])
            torch.bmm(scores[used].copy_(exact[used]), values[part], out=attended[part])
        by_text = attended.unflatten(0, (self.texts, count)).transpose(1, 2).flatten(0, 1).flatten(1)
        return by_text.index_select(0, self.places)

    def _pad(self, part: Tensor) -> Tensor:
        """Return the texts of (T, heads, head width) as (texts * heads, length, head width)."""
        rows = part[self.start : self.stop].flatten(1).index_select(0, self.sources)
        by_head = rows.view(self.texts, self.length, *part.shape[1:]).transpose(1, 2)
        return by_head.contiguous().flatten(0, 1)


def padded_group(lengths: np.ndarray, start: int, put: Callable[[np.ndarray], Tensor]) -> PaddedGroup:
    """Describe adjacent texts for which `padded_length` is the same.

    Args:
        lengths: tokens of each text.
        start: first token of the first one.
        put: copies an array to the device.
    """
    places, longest = np.arange(int(padded_length(lengths[0]))), lengths[:, None] - 1
    is_token = places <= longest
    firsts = np.cumsum(lengths) - lengths
    return PaddedGroup(
        start=start,
        stop=start + int(lengths.sum()),
        texts=len(lengths),
        length=len(places),
        sources=put((firsts[:, None] + np.minimum(places, longest)).ravel()),
        places=put(np.flatnonzero(is_token)),
        mask=put(np.where(is_token, np.float32(0), np.float32(-np.inf))[:, None]),
    )


def padded_length(lengths: np.ndarray) -> np.ndarray:
    """Round numbers of tokens up to the next multiple."""
    return -(-lengths // _MULTIPLE) * _MULTIPLE


def most_padded(sight: Sight) -> int:
    """Return the length of the longest text to pad: texts are padded only if all tokens see each other."""
    if sight.after == 0:
        return 0
    limits = (limit + 1 for limit in (sight.before, sight.after) if limit is not None)
    return min([MOST_PADDED, *limits])


def _heads_at_once(heads: int, length: int) -> int:
    """Return how many heads are computed together: all heads of some texts, or an equal part of one text's
    heads.

    oneDNN prepares a kernel for each number of heads, in half a millisecond, so there should be few.
    """
    most = max(1, _SCORES // length**2)
    if most >= heads:
        return most // heads * heads
    return max(part for part in range(1, most + 1) if heads % part == 0)
