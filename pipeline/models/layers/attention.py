"""Self-attention of packed texts: each text over its own tokens, no padding computed."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

# 64 captions of 6 to 40 tokens with dropout, one thread, forward and backward of a layer: 10.8 ms in 4 blocks, 12.2 in 8, 13.6 by equal length, 25.3 in one;
# two views of them: 25.3 ms in 4, 24.3 in 8, 27.6 by equal length, 70.1 in one
_BLOCK_TEXTS = 16
_MOST_BLOCKS = 8  # a GPU starts kernels for each


@dataclass(frozen=True)
class Group:
    """`count` texts of `length` tokens each, one after another from token `start` on."""

    start: int
    count: int
    length: int


def attend_groups(qkv: Tensor, groups: tuple[Group, ...], heads: int, bias: Tensor | None = None) -> Tensor:
    """(T, d) attention output; zero for tokens of no group.

    qkv (T, 3 d): queries, keys and values side by side. bias (heads, L, L), L at least the longest length, is added to the scaled products.
    Texts of one length go through one call; the kernel works text by text, so its bits do not depend on how many they are.
    """
    tokens, width = qkv.shape[0], qkv.shape[1] // 3
    mixed = torch.empty(tokens, width, dtype=qkv.dtype, device=qkv.device)
    end = 0
    for group in groups:
        start, length, end = group.start, group.length, group.start + group.count * group.length
        q, k, v = qkv[start:end].view(group.count, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
        mask = None if bias is None else bias[None, :, :length, :length].to(qkv.dtype)
        mixed[start:end] = (
            F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            .transpose(1, 2)
            .reshape(end - start, width)
        )
    mixed[end:] = 0
    return mixed


def attend_varlen(qkv: Tensor, bounds: Tensor, longest: int, heads: int) -> Tensor:
    """(T, d) attention output on CUDA in half precision; bounds (n + 1,) int32 are the ends of the texts, which fill all T tokens."""
    from torch.nn.attention.varlen import varlen_attn

    tokens, width = qkv.shape[0], qkv.shape[1] // 3
    q, k, v = qkv.view(tokens, 3, heads, width // heads).unbind(1)
    # one split: the kernel's choice of splits would depend on the neighbours, and with it the bits
    mixed = varlen_attn(q, k, v, bounds, bounds, longest, longest, num_splits=1)
    assert isinstance(mixed, Tensor)  # a pair only where auxiliary outputs are asked for
    return mixed.reshape(tokens, width)


@dataclass(frozen=True)
class Block:
    """Texts of similar length, one after another in the tokens start to stop, padded to the longest of them for the attention alone."""

    start: int
    stop: int
    texts: int
    longest: int
    places: Tensor | None
    """(tokens,) int64 place of each token among texts * longest padded ones; None where all are equally long"""
    mask: Tensor | None
    """(texts, 1, 1, longest) bool: no padding; None with `places`"""


def blocks_of(lengths: np.ndarray, put: Callable[[np.ndarray], Tensor]) -> tuple[Block, ...]:
    """Blocks of texts that lie one after another by falling length; `put` brings an array to the device."""
    count = min(_MOST_BLOCKS, -(-len(lengths) // _BLOCK_TEXTS))
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
    """(T, d) attention output, differentiable. qkv: queries, keys and values, (T, d) each; dropout: rate on the probabilities; bias: as of `attend_groups`."""
    return torch.cat([_attend_block(qkv, block, heads, dropout, bias) for block in blocks])


def _attend_block(
    qkv: tuple[Tensor, Tensor, Tensor], block: Block, heads: int, dropout: float, bias: Tensor | None
) -> Tensor:
    width, size = qkv[0].shape[1], block.texts * block.longest

    def spread(x: Tensor) -> Tensor:
        x = x[block.start : block.stop]
        x = x if block.places is None else x.new_zeros(size, width).index_copy(0, block.places, x)
        return x.view(block.texts, block.longest, heads, width // heads).transpose(1, 2)

    q, k, v = map(spread, qkv)
    mixed = (
        F.scaled_dot_product_attention(q, k, v, attn_mask=_mask(block, bias, q.dtype), dropout_p=dropout)
        .transpose(1, 2)
        .reshape(size, width)
    )
    return mixed if block.places is None else mixed[block.places]


def _mask(block: Block, bias: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    if bias is None:
        return block.mask
    added = bias[None, :, : block.longest, : block.longest].to(dtype)
    return added if block.mask is None else added.masked_fill(~block.mask, -math.inf)


def relative_bias(table: Tensor, length: int, *, max_distance: int = 128) -> Tensor:
    """(heads, length, length) bias of MPNet (Song et al. 2020, after T5): table (buckets, heads) by the logarithmic distance of key and query."""
    place = torch.arange(length)
    return (
        table[_bucket(place[None, :] - place[:, None], len(table), max_distance)]
        .permute(2, 0, 1)
        .contiguous()
    )


def _bucket(distance: Tensor, buckets: int, max_distance: int) -> Tensor:
    """Half of the buckets for keys behind the query; of each half, one half exact distances, the other logarithmic up to `max_distance`."""
    half, exact = buckets // 2, buckets // 4
    size = distance.abs()
    scale = torch.log(size.float() / exact) / math.log(max_distance / exact) * (half - exact)
    far = torch.clamp(exact + scale.clamp(min=0).long(), max=half - 1)
    return (distance > 0).long() * half + torch.where(size < exact, size, far)
