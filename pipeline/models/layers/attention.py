"""Self-attention of packed texts: each text attends to its own tokens, without computing padding."""

import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pipeline.models.layers.padded_attention import PaddedGroup, padded_group, padded_length
from pipeline.models.layers.padded_mask import Heads, Sight, attend

# Texts of a block. Forward and backward pass of a layer with dropout on one thread, for 64 captions of 6 to
# 40 tokens: 10.8 ms in 4 blocks, 12.2 in 8, 13.6 in one block per length, 25.3 in one block. For 128: 25.3 ms
# in 4 blocks, 24.3 in 8, 27.6 in one block per length, 70.1 in one block.
_BLOCK_TEXTS = 16
_MAX_BLOCKS = {"cpu": 8, "cuda": 2}  # by kind of device; on a GPU the launches of a block's kernels cost more
_LEAST_VARLEN = 128  # lowest limit to give to the kernel: the size of its largest block of tokens


@dataclass(frozen=True)
class Group:
    """Adjacent texts of equal length: `count` texts of `length` tokens each, from token `start` on.

    They share one kernel call. The kernel works text by text, so the bits of a text do not depend on other
    texts.
    """

    start: int
    count: int
    length: int

    @property
    def stop(self) -> int:
        """Token after the last one of the group."""
        return self.start + self.count * self.length

    def attend(self, heads: Heads, sight: Sight, bias: Tensor | None = None) -> Tensor:
        """Attend within each text: (stop - start, heads * head width); arguments as in `attend_groups`."""
        texts = Heads(
            *(
                part[self.start : self.stop].unflatten(0, (self.count, self.length)).transpose(1, 2)
                for part in heads
            )
        )
        mask = None if bias is None else bias[None, :, : self.length, : self.length].to(heads.queries.dtype)
        attended = attend(texts, sight, bias=mask)
        return attended.transpose(1, 2).reshape(self.stop - self.start, -1)


def groups_of(
    lengths: np.ndarray, most: int = 0, put: Callable[[np.ndarray], Tensor] = torch.from_numpy
) -> tuple[Group | PaddedGroup, ...]:
    """Group adjacent texts of equal length, and adjacent texts that are padded to the same length.

    Args:
        lengths: tokens of each text; the first one begins at token 0.
        most: longest text to pad, in tokens; 0: no text is padded.
        put: copies an array to the device.
    """
    starts = np.cumsum(lengths) - lengths
    kinds = np.where(lengths <= most, -padded_length(lengths), lengths)
    firsts = np.flatnonzero(np.diff(kinds, prepend=0))
    ends = np.append(firsts, len(lengths))[1:]
    return tuple(
        padded_group(lengths[first:end], int(starts[first]), put)
        if kinds[first] < 0
        else Group(int(starts[first]), int(end - first), int(lengths[first]))
        for first, end in zip(firsts, ends, strict=True)
    )


def attend_groups(
    heads: Heads, groups: tuple[Group | PaddedGroup, ...], sight: Sight, bias: Tensor | None = None
) -> Tensor:
    """Attend within each text of the groups.

    Args:
        heads: (T, heads, head width) each.
        groups: from token 0 on, without gaps.
        sight: tokens that a token attends to.
        bias: (heads, L, L), added to the scaled products, only without padded groups; L is at least the
            longest length.

    Returns:
        (T, heads * head width), zero for tokens after the last group.
    """
    outputs = heads.queries.new_empty(len(heads.queries), heads.queries[0].numel())
    for group in groups:
        outputs[group.start : group.stop] = (
            group.attend(heads, sight, bias) if isinstance(group, Group) else group.attend(heads, sight)
        )
    outputs[groups[-1].stop if groups else 0 :] = 0
    return outputs


def has_varlen(
    dtype: torch.dtype, head_width: int, capability: tuple[int, int] | None, *, grouped: bool = False
) -> bool:
    """Return whether `attend_varlen` computes heads of this type and width.

    Its kernel, FlashAttention 2, needs half precision, heads of at most 256 values, a multiple of 8, and a
    GPU of the generation Ampere or later. In the first versions of torch with this kernel, its function lacks
    arguments that are needed here.

    Args:
        dtype: type of the heads.
        head_width: values of a head.
        capability: compute capability of the GPU; None for a CPU.
        grouped: keys and values have fewer heads than queries.
    """
    needed = {"scale", "window_size"} | ({"enable_gqa"} if grouped else set())
    return (
        dtype in (torch.bfloat16, torch.float16)
        and head_width % 8 == 0
        and head_width <= 256
        and capability is not None
        and capability >= (8, 0)
        and needed <= _varlen_arguments()
    )


@functools.cache
def _varlen_arguments() -> frozenset[str]:
    """Return the names of `varlen_attn`'s arguments; none if torch has no such function."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return frozenset()
    return frozenset(inspect.signature(varlen_attn).parameters)


def varlen_limit(lengths: np.ndarray) -> int:
    """Return an upper limit of the lengths, a power of two, for `attend_varlen`.

    The kernel starts a block of threads for every 64 or 128 tokens up to the limit, for every text and head.
    If texts are far shorter than the limit, most blocks have nothing to do, but starting them takes time.
    """
    return 1 << (max(int(lengths.max(initial=0)), _LEAST_VARLEN) - 1).bit_length()


def attend_varlen(heads: Heads, bounds: Tensor, longest: int, sight: Sight) -> Tensor:
    """Attend within each text, on CUDA in half precision; see `has_varlen`.

    Args:
        heads: (T, heads, head width) each.
        bounds: (n + 1,) int32, 0 and the end of each text; the last one is T.
        longest: tokens of the longest text, or more.
        sight: tokens that a token attends to.

    Returns:
        (T, heads * head width)
    """
    from torch.nn.attention.varlen import varlen_attn

    before, after = (-1 if limit is None else limit for limit in (sight.before, sight.after))
    options = {
        "enable_gqa": heads.queries.shape[1] != heads.keys.shape[1],
        # Otherwise newer kernels choose the number of splits by the other texts, which changes a text's bits.
        "num_splits": 1,
    }
    attended = varlen_attn(
        *heads,
        bounds,
        bounds,
        longest,
        longest,
        scale=sight.scale,
        window_size=(before, after),
        **{name: value for name, value in options.items() if name in _varlen_arguments()},  # type: ignore[arg-type]
    )
    assert isinstance(attended, Tensor)  # a tuple only if auxiliary outputs are requested
    return attended.flatten(1)


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
    """(tokens,) int64 index of each token among the texts * longest padded tokens; None if no text
    is padded
    """
    mask: Tensor | None
    """(texts, 1, 1, longest) bool, False for padding; None if no text is padded"""


def blocks_of(
    lengths: np.ndarray, put: Callable[[np.ndarray], Tensor], kind: str = "cpu"
) -> tuple[Block, ...]:
    """Split packed texts into blocks of similar length.

    Args:
        lengths: tokens of each text, decreasing, at least 1.
        put: copies an array to the device.
        kind: kind of the device, cpu or cuda.
    """
    count = min(_MAX_BLOCKS[kind], -(-len(lengths) // _BLOCK_TEXTS))
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
    heads: Heads, blocks: tuple[Block, ...], sight: Sight, dropout: float, bias: Tensor | None = None
) -> Tensor:
    """Attend within each text of the blocks; differentiable.

    Args:
        heads: (T, heads, head width) each.
        blocks: from token 0 on, without gaps.
        sight: tokens that a token attends to.
        dropout: rate on the attention probabilities.
        bias: (heads, L, L), added to the scaled products; L is at least the longest length.

    Returns:
        (T, heads * head width)
    """
    return torch.cat([_attend_block(heads, block, sight, dropout, bias) for block in blocks])


def _attend_block(heads: Heads, block: Block, sight: Sight, dropout: float, bias: Tensor | None) -> Tensor:
    """Attend within each text of a block: (tokens of the block, heads * head width)."""
    size = block.texts * block.longest

    def pad(x: Tensor) -> Tensor:
        # (T, heads, head width) -> (texts, heads, longest, head width)
        x = x[block.start : block.stop]
        if block.positions is not None:
            x = x.new_zeros(size, *x.shape[1:]).index_copy(0, block.positions, x)
        return x.unflatten(0, (block.texts, block.longest)).transpose(1, 2)

    padded = Heads(*map(pad, heads))
    if bias is None:
        attended = attend(padded, sight, block.mask, dropout=dropout)
    else:
        attended = attend(padded, sight, bias=_with_mask(bias, block, heads.queries.dtype), dropout=dropout)
    flat = attended.transpose(1, 2).reshape(size, -1)
    return flat if block.positions is None else flat[block.positions]


def _with_mask(bias: Tensor, block: Block, dtype: torch.dtype) -> Tensor:
    """Combine a bias and the padding mask of a block."""
    added = bias[None, :, : block.longest, : block.longest].to(dtype)
    return added if block.mask is None else added.masked_fill(~block.mask, -math.inf)


def relative_bias(table: Tensor, length: int, *, max_distance: int = 128) -> Tensor:
    """Compute the attention bias of MPNet by the distance of key and query (Song et al. 2020, after T5).

    Args:
        table: (buckets, heads).
        length: tokens of the longest text.
        max_distance: larger distances share the last bucket.

    Returns:
        (heads, length, length)
    """
    positions = torch.arange(length, device=table.device)
    buckets = _bucket(positions[None, :] - positions[:, None], len(table), max_distance)
    return table[buckets].permute(2, 0, 1).contiguous()


def _bucket(distance: Tensor, buckets: int, max_distance: int) -> Tensor:
    """Return the bucket of each distance; each direction has one half of the buckets.

    The first half of a direction's buckets hold one distance each. The limits of the others grow
    logarithmically up to `max_distance`. The operations, their order and float32 are those of transformers,
    so that rounding moves no distance to another bucket.
    """
    half, exact = buckets // 2, buckets // 4
    size = distance.abs()
    # Negative below `exact`, and -inf at 0, which no integer represents; there, `where` takes `size`.
    logarithmic = torch.log(size.float() / exact) / math.log(max_distance / exact) * (half - exact)
    far = torch.clamp(exact + logarithmic.clamp(min=0).long(), max=half - 1)
    return (distance > 0).long() * half + torch.where(size < exact, size, far)
