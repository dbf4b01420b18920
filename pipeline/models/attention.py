"""Self-attention of packed texts: each text over its own tokens, no padding computed."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


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
        mixed[start:end] = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).reshape(end - start, width)
    mixed[end:] = 0
    return mixed


def attend_varlen(qkv: Tensor, bounds: Tensor, longest: int, heads: int) -> Tensor:
    """(T, d) attention output on CUDA in half precision; bounds (n + 1,) int32 are the ends of the texts, which fill all T tokens."""
    from torch.nn.attention.varlen import varlen_attn

    tokens, width = qkv.shape[0], qkv.shape[1] // 3
    q, k, v = qkv.view(tokens, 3, heads, width // heads).unbind(1)
    # one split: the kernel's choice of splits would depend on the neighbours, and with it the bits
    mixed = varlen_attn(q, k, v, bounds, bounds, longest, longest, num_splits=1)
    assert isinstance(mixed, Tensor)                    # a pair only where auxiliary outputs are asked for
    return mixed.reshape(tokens, width)


def relative_bias(table: Tensor, length: int, *, max_distance: int = 128) -> Tensor:
    """(heads, length, length) bias of MPNet (Song et al. 2020, after T5): table (buckets, heads) by the logarithmic distance of key and query."""
    place = torch.arange(length)
    return table[_bucket(place[None, :] - place[:, None], len(table), max_distance)].permute(2, 0, 1).contiguous()


def _bucket(distance: Tensor, buckets: int, max_distance: int) -> Tensor:
    """Half of the buckets for keys behind the query; of each half, one half exact distances, the other logarithmic up to `max_distance`."""
    half, exact = buckets // 2, buckets // 4
    size = distance.abs()
    scale = torch.log(size.float() / exact) / math.log(max_distance / exact) * (half - exact)
    far = torch.clamp(exact + scale.clamp(min=0).long(), max=half - 1)
    return (distance > 0).long() * half + torch.where(size < exact, size, far)
