"""Self-attention of packed texts: each text attends to its own tokens, without computing padding."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

# 64 captions of 6 to 40 tokens with dropout, one thread, forward and backward of a layer: 10.8 ms in
# 4 blocks, 12.2 in 8, 13.6 by equal length, 25.3 in one; two views of them: 25.3 ms in 4 blocks,
# 24.3 in 8, 27.6 by equal length, 70.1 in one
_BLOCK_TEXTS = 16
_MAX_BLOCKS = 8  # a GPU starts kernels for each


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
        (T, d), zero for tokens behind the last group.
    """
    width = qkv.shape[1] // 3
    mixed, end = qkv.new_empty(len(qkv), width), 0
    for group in groups:
        start, length, end = group.start, group.length, group.start + group.count * group.length
        q, k, v = qkv[start:end].view(group.count, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
        mask = None if bias is None else bias[None, :, :length, :length].to(qkv.dtype)
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        mixed[start:end] = attended.transpose(1, 2).reshape(end - start, width)
    mixed[end:] = 0
    return mixed


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
    # one split: otherwise the kernel's number of splits, and so a text's bits, depend on the other texts
    mixed = varlen_attn(q, k, v, bounds, bounds, longest, longest, num_splits=1)
    assert isinstance(mixed, Tensor)  # a pair only if auxiliary outputs are requested
    return mixed.reshape(tokens, width)


@dataclass(frozen=True)
class Block:
    """Adjacent texts of similar length (tokens start to stop), padded to the longest for attention only."""

    start: int
    stop: int
    texts: int
    longest: int
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
    total, longest = int(lengths.sum()), int(lengths[0])
    if lengths[-1] == longest:
        return Block(stop - total, stop, len(lengths), longest, None, None)
    real = np.arange(longest) < lengths[:, None]
    return Block(
        stop - total, stop, len(lengths), longest, put(np.flatnonzero(real)), put(real[:, None, None])
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
    width, size = qkv[0].shape[1], block.texts * block.longest

    def padded(x: Tensor) -> Tensor:
        x = x[block.start : block.stop]
        x = x if block.positions is None else x.new_zeros(size, width).index_copy(0, block.positions, x)
        return x.view(block.texts, block.longest, heads, width // heads).transpose(1, 2)

    q, k, v = map(padded, qkv)
    attended = F.scaled_dot_product_attention(
        q, k, v, attn_mask=_mask(block, bias, q.dtype), dropout_p=dropout
    )
    mixed = attended.transpose(1, 2).reshape(size, width)
    return mixed if block.positions is None else mixed[block.positions]


def _mask(block: Block, bias: Tensor | None, dtype: torch.dtype) -> Tensor | None:
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
    position = torch.arange(length)
    bucket = _bucket(position[None, :] - position[:, None], len(table), max_distance)
    return table[bucket].permute(2, 0, 1).contiguous()


def _bucket(distance: Tensor, buckets: int, max_distance: int) -> Tensor:
    """Bucket of each distance: one half of the buckets for each direction.

    Of a direction's buckets, half hold one distance each; the others are logarithmic up to `max_distance`.
    """
    half, exact = buckets // 2, buckets // 4
    size = distance.abs()
    scale = torch.log(size.float() / exact) / math.log(max_distance / exact) * (half - exact)
    far = torch.clamp(exact + scale.clamp(min=0).long(), max=half - 1)
    return (distance > 0).long() * half + torch.where(size < exact, size, far)
