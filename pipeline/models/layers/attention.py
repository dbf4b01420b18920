"""Self-attention of packed texts: each text attends to its own tokens, without computing padding."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

# Texts of a block. Forward and backward pass of a layer with dropout on one thread, for 64 captions of 6 to
# 40 tokens: 10.8 ms in 4 blocks, 12.2 in 8, 13.6 in one block per length, 25.3 in one block. For 128: 25.3 ms
# in 4 blocks, 24.3 in 8, 27.6 in one block per length, 70.1 in one block.
_BLOCK_TEXTS = 16
_MAX_BLOCKS = 8  # each block costs further kernel launches on a GPU


@dataclass(frozen=True)
class Group:
    """Adjacent texts of equal length: `count` texts of `length` tokens each, from token `start` on."""

    start: int
    count: int
    length: int


def attend_groups(qkv: Tensor, groups: tuple[Group, ...], heads: int, bias: Tensor | None = None) -> Tensor:
    """Attend within each text of the groups.

    Texts of equal length share one kernel call. The kernel works text by text, so the bits of a
    text do not depend on the others.

    Args:
        qkv: (T, 3 d) queries, keys and values side by side.
        groups: from token 0 on, without gaps.
        heads: number of attention heads.
        bias: (heads, L, L), added to the scaled products; L is at least the longest length.

    Returns:
        (T, d), zero for tokens after the last group.
    """
    width = qkv.shape[1] // 3
    outputs = qkv.new_empty(len(qkv), width)
    end = 0
    for group in groups:
        start, length = group.start, group.length
        end = start + group.count * length
        q, k, v = qkv[start:end].view(group.count, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
        mask = None if bias is None else bias[None, :, :length, :length].to(qkv.dtype)
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        outputs[start:end] = attended.transpose(1, 2).reshape(end - start, width)
    outputs[end:] = 0
    return outputs


def attend_varlen(qkv: Tensor, bounds: Tensor, longest: int, heads: int) -> Tensor:
    """Attend within each text, on CUDA in half precision.

    Args:
        qkv: (T, 3 d) queries, keys and values side by side.
        bounds: (n + 1,) int32, 0 and the end of each text; the last one is T.
        longest: tokens of the longest text.
        heads: number of attention heads.

    Returns:
        (T, d)
    """
    from torch.nn.attention.varlen import varlen_attn

    tokens, width = qkv.shape[0], qkv.shape[1] // 3
    q, k, v = qkv.view(tokens, 3, heads, width // heads).unbind(1)
    # otherwise the kernel's number of splits, and with it a text's bits, depends on the other texts
    attended = varlen_attn(q, k, v, bounds, bounds, longest, longest, num_splits=1)
    assert isinstance(attended, Tensor)  # a tuple only if auxiliary outputs are requested
    return attended.reshape(tokens, width)


@dataclass(frozen=True)
class Block:
    """Adjacent texts of similar length, which attention pads to the longest of them."""

    start: int
    """first token of the block"""
    stop: int
    """token after the last one of the block"""
    texts: int
    """number of texts"""
    longest: int
    """tokens of the longest text"""
    positions: Tensor | None
    """(tokens,) int64 index of each token among texts * longest padded ones; None if no text is padded"""
    mask: Tensor | None
    """(texts, 1, 1, longest) bool, False for padding; None if no text is padded"""


def blocks_of(lengths: np.ndarray, put: Callable[[np.ndarray], Tensor]) -> tuple[Block, ...]:
    """Split packed texts into blocks of similar length.

    Args:
        lengths: tokens of each text, decreasing, at least 1.
        put: copies an array to the device.
    """
    count = min(_MAX_BLOCKS, -(-len(lengths) // _BLOCK_TEXTS))
    ends = np.cumsum(lengths)
    return tuple(
        _block(lengths[part], int(ends[part[-1]]), put)
        for part in np.array_split(np.arange(len(lengths)), count)
    )


def _block(lengths: np.ndarray, stop: int, put: Callable[[np.ndarray], Tensor]) -> Block:
    """Describe the block of texts of these lengths that ends before token `stop`."""
    total, longest = int(lengths.sum()), int(lengths[0])
    if lengths[-1] == longest:
        return Block(stop - total, stop, len(lengths), longest, positions=None, mask=None)
    is_token = np.arange(longest) < lengths[:, None]
    return Block(
        start=stop - total,
        stop=stop,
        texts=len(lengths),
        longest=longest,
        positions=put(np.flatnonzero(is_token)),
        mask=put(is_token[:, None, None]),
    )


def attend_blocks(
    qkv: tuple[Tensor, Tensor, Tensor],
    blocks: tuple[Block, ...],
    heads: int,
    dropout: float,
    bias: Tensor | None = None,
) -> Tensor:
    """Attend within each text of the blocks; differentiable.

    Args:
        qkv: queries, keys and values, (T, d) each.
        blocks: from token 0 on, without gaps.
        heads: number of attention heads.
        dropout: rate on the attention probabilities.
        bias: (heads, L, L), added to the scaled products; L is at least the longest length.

    Returns:
        (T, d)
    """
    return torch.cat([_attend_block(qkv, block, heads, dropout, bias) for block in blocks])


def _attend_block(
    qkv: tuple[Tensor, Tensor, Tensor], block: Block, heads: int, dropout: float, bias: Tensor | None
) -> Tensor:
    """Attend within each text of a block: (tokens of the block, d)."""
    width, size = qkv[0].shape[1], block.texts * block.longest

    def pad(x: Tensor) -> Tensor:
        # (T, d) -> (texts, heads, longest, d / heads)
        x = x[block.start : block.stop]
        x = x if block.positions is None else x.new_zeros(size, width).index_copy(0, block.positions, x)
        return x.view(block.texts, block.longest, heads, width // heads).transpose(1, 2)

    q, k, v = map(pad, qkv)
    attended = F.scaled_dot_product_attention(
        q, k, v, attn_mask=_attention_mask(block, bias, q.dtype), dropout_p=dropout
    )
    flat = attended.transpose(1, 2).reshape(size, width)
    return flat if block.positions is None else flat[block.positions]


def _attention_mask(block: Block, bias: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Combine the padding mask and the bias into the `attn_mask` of scaled_dot_product_attention."""
    if bias is None:
        return block.mask
    added = bias[None, :, : block.longest, : block.longest].to(dtype)
    return added if block.mask is None else added.masked_fill(~block.mask, -math.inf)


def relative_bias(table: Tensor, length: int, *, max_distance: int = 128) -> Tensor:
    """Attention bias of MPNet by the distance of key and query (Song et al. 2020, after T5).

    Args:
        table: (buckets, heads).
        length: tokens of the longest text.
        max_distance: larger distances share the last bucket.

    Returns:
        (heads, length, length)
    """
    positions = torch.arange(length)
    buckets = _bucket(positions[None, :] - positions[:, None], len(table), max_distance)
    return table[buckets].permute(2, 0, 1).contiguous()


def _bucket(distance: Tensor, buckets: int, max_distance: int) -> Tensor:
    """Bucket of each distance: one half of the buckets for each direction.

    The first half of a direction's buckets hold one distance each. The limits of the others grow
    logarithmically up to `max_distance`.
    """
    half, exact = buckets // 2, buckets // 4
    size = distance.abs()
    logarithmic = torch.log(size.float() / exact) / math.log(max_distance / exact) * (half - exact)
    far = torch.clamp(exact + logarithmic.clamp(min=0).long(), max=half - 1)
    return (distance > 0).long() * half + torch.where(size < exact, size, far)
