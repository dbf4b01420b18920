"""One layer of the packed forward pass: attention, then a feed-forward layer, each added to its input.

It is not the layer of `trainable.packed_layer`, which keeps the modules of the checkpoint one by one, for
adapters and gradients. With that layer, a BERT of six layers encodes 10 % fewer tokens a second on one core,
and vectors have other bits, because products are neither joined nor prepared.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.models.layers.linear import LinearMap
from pipeline.models.layers.padded_mask import Heads
from pipeline.models.layers.rotary import Angles, rotate

# A compiled kernel saves time for buffers of at least this many tokens. Its call takes the processor 70 µs,
# the calls of the two kernels that it replaces take 20.
_LEAST_FUSED = 4_096
# Rows of a kernel's first call, for which the compiler chooses block sizes, and with them the order of sums.
_COMPILED_ROWS = 8_192

Attend = Callable[[Heads], Tensor]
"""Attention within the texts of a buffer: (T, heads * head width) for heads of (T, heads, head width)."""


class FusedKernel:
    """Compiled function of tensors (rows, ...), and of other arguments.

    The compiler would choose a kernel, and with it the order of sums, by the rows of the first call.
    So the function is first called with a fixed number of rows, and all other calls use the same kernel.

    PyTorch stores at most eight kernels for the code of a function; for a ninth, it warns and runs the
    function uncompiled. So each instance compiles its own copy of the code, and a ninth kernel is an error.
    """

    def __init__(
        self, function: Callable[..., Tensor], backend: str | Callable[..., Any] = "inductor"
    ) -> None:
        """Prepare the compilation, which the first call does.

        Args:
            function: a function of tensors.
            backend: compiler, as in `torch.compile`.
        """
        assert isinstance(function, FunctionType)
        code, defaults, closure = function.__code__.replace(), function.__defaults__, function.__closure__
        copy = FunctionType(code, function.__globals__, function.__name__, defaults, closure)
        self._function = torch.compile(copy, backend=backend)
        self._compiled: set[tuple[object, ...]] = set()

    def __call__(self, rows: tuple[Tensor, ...], *others: Tensor | float | None) -> Tensor:
        """Call the function with tensors of any number of rows, and other arguments."""
        kind = tuple(
            (each.shape[1:], each.stride(), each.dtype, each.device)
            for each in (*rows, *(other for other in others if isinstance(other, Tensor)))
        )
        if kind not in self._compiled:
            for other in others:
                if isinstance(other, Tensor):
                    torch._dynamo.mark_static(other)
            with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
                self._function(*map(_example, rows), *others)
            self._compiled.add(kind)
        return self._function(*rows, *others)


def _example(x: Tensor) -> Tensor:
    """Return zeros with the layout of x in a fixed number of rows; the compiled code takes any number."""
    example = torch.empty_strided(
        (_COMPILED_ROWS, *x.shape[1:]), x.stride(), dtype=x.dtype, device=x.device
    ).zero_()
    torch._dynamo.mark_dynamic(example, 0)
    for dimension in range(1, x.ndim):
        torch._dynamo.mark_static(example, dimension)
    return example


class Norm:
    """Layer or root mean square normalization over the last dimension, of x or of a residual sum."""

    def __init__(
        self,
        kind: Literal["layer", "rms"],
        weight: Tensor,
        bias: Tensor | None,
        epsilon: float,
        fused: FusedKernel | None = None,
    ) -> None:
        self._kind, self._fused = kind, fused
        self._weight, self._bias, self._epsilon = weight, bias, epsilon

    def __call__(self, x: Tensor) -> Tensor:
        """Normalize x (T, d)."""
        if self._kind == "rms":
            return F.rms_norm(x, self._weight.shape, self._weight, self._epsilon)
        return F.layer_norm(x, self._weight.shape, self._weight, self._bias, self._epsilon)

    def of_sum(self, update: Tensor, x: Tensor) -> Tensor:
        """Normalize update + x; may overwrite `update`."""
        if self._fused is None or self._kind == "rms" or len(x) < _LEAST_FUSED:
            return self(update.add_(x))
        return self._fused((update, x), self._weight, self._bias, self._epsilon)


def norm_of_sum(update: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float) -> Tensor:
    """Return the layer normalization of update + x, to be compiled."""
    return F.layer_norm(update + x, weight.shape, weight, bias, epsilon)


@dataclass(frozen=True)
class Residual:
    """Last map of a sublayer, and the normalizations around it."""

    output: LinearMap
    norm_before: Norm | None
    norm_of_output: Norm | None
    norm_of_sum: Norm | None

    def __call__(self, x: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
        """Return x plus the output of the sublayer (Vaswani et al. 2017).

        Args:
            x: (T, d), in the type of the sum, which may be wider than the linear maps' type.
            compute: the sublayer without its last map.
        """
        update = self.output(compute(x if self.norm_before is None else self.norm_before(x))).to(x.dtype)
        if self.norm_of_output is not None:
            update = self.norm_of_output(update)
        return update.add_(x) if self.norm_of_sum is None else self.norm_of_sum.of_sum(update, x)


@dataclass(frozen=True)
class HeadNorm:
    """Root mean square normalization of each head of queries and keys."""

    weights: Tensor
    """(heads of queries and keys, head width)"""
    epsilon: float

    def __call__(self, x: Tensor) -> Tensor:
        """Normalize x (T, heads, head width)."""
        return F.rms_norm(x, x.shape[-1:], None, self.epsilon) * self.weights


@dataclass(frozen=True)
class PackedAttention:
    """Attention of a layer: normalized heads, rotated by their positions."""

    residual: Residual
    inputs: LinearMap
    """maps to queries, keys and values, side by side"""
    heads: int
    key_heads: int
    norm: HeadNorm | None
    fused_rotation: FusedKernel | None

    def __call__(self, x: Tensor, attend: Attend, angles: Angles | None) -> Tensor:
        """Return (T, d) for x (T, d). angles: rotations by the tokens' positions; None without rotation."""
        return self.residual(x, lambda normed: attend(self._heads(self.inputs(normed), angles)))

    def _heads(self, mapped: Tensor, angles: Angles | None) -> Heads:
        count = self.heads + 2 * self.key_heads
        by_head = mapped.unflatten(1, (count, mapped.shape[1] // count))
        both, values = by_head.split((self.heads + self.key_heads, self.key_heads), dim=1)
        if self.norm is not None:
            both = self.norm(both)
        if angles is not None:
            both = (
                rotate(both, angles) if self.fused_rotation is None else self.fused_rotation((both, *angles))
            )
        queries, keys = both.split((self.heads, self.key_heads), dim=1)
        return Heads(queries, keys, values)


@dataclass(frozen=True)
class FeedForward:
    """Feed-forward layer, with gates (Shazeer 2020) or without."""

    residual: Residual
    activated: LinearMap
    """includes the activation"""
    gated: LinearMap | None
    """its output multiplies that of `activated`"""
    rows: int
    """tokens that are computed at once, so that a long text does not need memory for all inner values"""

    def __call__(self, x: Tensor) -> Tensor:
        """Return (T, d) for x (T, d)."""
        if len(x) <= self.rows:
            return self.residual(x, self._inner)
        return torch.cat([self.residual(part, self._inner) for part in x.split(self.rows)])

    def _inner(self, x: Tensor) -> Tensor:
        inner = self.activated(x)
        return inner if self.gated is None else inner.mul_(self.gated(x))


@dataclass(frozen=True)
class PackedLayer:
    """One Transformer layer."""

    attention: PackedAttention
    feed_forward: FeedForward

    def __call__(self, x: Tensor, attend: Attend, angles: Angles | None) -> Tensor:
        """Return (T, d) for x (T, d)."""
        return self.feed_forward(self.attention(x, attend, angles))
