"""Attention of the tokens of padded texts: to all tokens, to earlier tokens, or to near tokens.

Attention to near tokens takes time and memory that are linear in the length of a text.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

# Queries computed together. One text of 4,096 tokens, 12 heads of 64 values, 64 near tokens on either side,
# one thread: 86 ms in steps of 64, 83 in steps of 128, 110 in steps of 256 (all tokens: 1,113 ms).
_LEAST_STEP = 128
_MOST_STEP = 1_024  # bounds the mask of a step: 1,024 rows of 4 kB for each 1,024 keys


class Heads(NamedTuple):
    """Queries, keys and values by head; keys and values may have fewer heads, each shared by several heads of
    queries.
    """

    queries: Tensor
    keys: Tensor
    values: Tensor


class Sight(NamedTuple):
    """Tokens that a token attends to, besides itself."""

    before: int | None = None
    """number of tokens before it; None: all"""
    after: int | None = None
    """number of tokens after it; None: all; 0: attention is causal"""
    scale: float | None = None
    """factor of the products of queries and keys; None: 1 / sqrt(head width)"""

    def within(self, length: int) -> "Sight":
        """Return the same sight for texts of `length` tokens, with None for limits that have no effect."""
        before, after = (
            None if limit is None or limit >= length - 1 else limit for limit in (self.before, self.after)
        )
        return Sight(before, after, self.scale)


def attend(
    heads: Heads, sight: Sight, mask: Tensor | None = None, bias: Tensor | None = None, dropout: float = 0.0
) -> Tensor:
    """Attend within each text.

    Args:
        heads: (n, heads, L, head width) each.
        sight: tokens that a token attends to.
        mask: (n, 1, 1, L) bool, False for the padding after the end of a text; None without padding. Results
            of padding are arbitrary.
        bias: (1 or n, heads, L, L), added to the scaled products; it includes the mask. It may be given only
            if each token attends to all tokens.
        dropout: rate on the attention probabilities.

    Returns:
        (n, heads, L, head width)
    """
    length = heads.queries.shape[2]
    sight = sight.within(length)
    if sight.after == 0:
        mask = None  # padding comes after all tokens of a text, so they do not see it
    if sight.before is None and sight.after in (None, 0):
        return _product(heads, mask if bias is None else bias, dropout, sight)
    step = min(max(_LEAST_STEP, sight.before or 0, sight.after or 0), _MOST_STEP)
    return torch.cat(
        [
            _attend_near(heads, (first, min(first + step, length)), sight, mask, dropout)
            for first in range(0, length, step)
        ],
        dim=2,
    )


def _attend_near(
    heads: Heads, queries: tuple[int, int], sight: Sight, mask: Tensor | None, dropout: float
) -> Tensor:
    """Attend from the queries in a range of positions to the keys that at least one of them sees."""
    (first, last), length = queries, heads.queries.shape[2]
    start = 0 if sight.before is None else max(0, first - sight.before)
    stop = length if sight.after is None else min(length, last + sight.after)
    device = heads.queries.device
    distance = torch.arange(start, stop, device=device) - torch.arange(first, last, device=device)[:, None]
    is_seen = torch.ones_like(distance, dtype=torch.bool)
    if sight.before is not None:
        is_seen &= distance >= -sight.before
    if sight.after is not None:
        is_seen &= distance <= sight.after
    # each query sees itself: padding may see only padding, and attention over no token gives NaN
    is_seen = is_seen if mask is None else is_seen & (mask[..., start:stop] | (distance == 0))
    part = Heads(
        heads.queries[:, :, first:last], heads.keys[:, :, start:stop], heads.values[:, :, start:stop]
    )
    return _product(part, is_seen, dropout, Sight(scale=sight.scale))


def _product(heads: Heads, mask: Tensor | None, dropout: float, sight: Sight) -> Tensor:
    queries, keys, values = heads
    served = queries.shape[1] // keys.shape[1]
    if served > 1 and queries.device.type == "cuda":
        # With a mask, or in float32, torch has no kernel for shared keys. It multiplies whole batches, and
        # the number of texts in a batch then changes bits.
        keys, values = (part.repeat_interleave(served, dim=1) for part in (keys, values))
    with without_cudnn(queries.device):
        return F.scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=mask,
            dropout_p=dropout,
            is_causal=sight.after == 0,
            scale=sight.scale,
            enable_gqa=queries.shape[1] != keys.shape[1],
        )


@contextmanager
def without_cudnn(device: torch.device) -> Iterator[None]:
    """Compute attention on a GPU without cuDNN for the duration of the block.

    On Hopper GPUs torch prefers cuDNN in half precision. cuDNN prepares a plan for every new shape, which
    takes tens of milliseconds, and here shapes change from call to call.
    """
    if device.type != "cuda" or not torch.backends.cuda.cudnn_sdp_enabled():
        yield
        return
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(True)
