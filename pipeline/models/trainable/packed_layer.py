"""One trainable layer of a packed family, whose modules have the names of its checkpoints.

Inference has a layer of its own, `inference.packed_layer`, which is faster and has no modules to train.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.models.layers.attention import Block, attend_blocks
from pipeline.models.layers.linear import ACTIVATIONS, TrainableLinear
from pipeline.models.layers.padded_mask import Heads, Sight
from pipeline.models.layers.rotary import Angles, rotate
from pipeline.models.spec.architecture import Architecture
from pipeline.models.spec.tensor_names import Names, SublayerNames
from pipeline.models.trainable.dropout import Rates, dropout


@dataclass(frozen=True)
class PackedTexts:
    """Texts of a forward pass, as attention needs them."""

    blocks: tuple[Block, ...]
    """texts that attention pads together"""
    angles: dict[float, Angles]
    """angles of the tokens' rotary positions, by base"""
    bias: Tensor | None
    """see `attend_blocks`"""


class ShiftedRMSNorm(nn.RMSNorm):
    """Root mean square normalization whose weights are stored minus 1 (Gemma)."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalize x over its last dimension."""
        return F.rms_norm(x, self.normalized_shape, self.weight + 1, self.eps)


class Layer(nn.Module):
    """One Transformer layer (Vaswani et al. 2017).

    Its modules have the family's names, so that LoRA can replace them.

    Attributes:
        compiled: compile the operations between the matrix products; the products have kernels of their own.
    """

    def __init__(self, shape: Architecture, names: Names, number: int, rates: Rates) -> None:
        super().__init__()
        self.compiled, self._shape, self._names, self._rates = False, shape, names, rates
        self._attention, self._kind = names.attention_of(number), shape.attention[number]
        inner, keys = shape.heads * shape.head_width, shape.key_heads * shape.head_width
        self._head_rows, self._inner_rows = (inner, keys, keys), (shape.inner,) * (1 + names.gated)
        biases, width = shape.biases, shape.width
        self._add_maps(self._attention.inputs, self._head_rows, biases.inputs)
        self._add_map(self._attention.output, inner, width, biases.attention)
        self._add_maps(names.feed_forward.inputs, self._inner_rows, biases.inner)
        self._add_map(names.feed_forward.output, shape.inner, width, biases.outer)
        for name in (*self._attention.norms, *names.feed_forward.norms):
            add_module(self, name, new_norm(shape, width))
        for name in filter(None, (names.query_norm, names.key_norm)):
            add_module(self, name, new_norm(shape, shape.head_width))

    def forward(self, x: Tensor, texts: PackedTexts) -> Tensor:
        """Return (T, d) states for x (T, d), text after text."""
        rates = self._rates
        x = self._add_sublayer(x, self._attention, functools.partial(self._attend, texts), rates.output)
        return self._add_sublayer(x, self._names.feed_forward, self._feed_forward, rates.feed_forward)

    def _attend(self, texts: PackedTexts, x: Tensor) -> Tensor:
        """Return the attention within the texts, (T, heads * head width)."""
        width, names, base = self._shape.head_width, self._names, self._kind.base
        mapped = self._map(self._attention.inputs, self._head_rows, x)
        queries, keys, values = (part.unflatten(1, (-1, width)) for part in mapped)
        if names.query_norm and names.key_norm:
            queries = self.get_submodule(names.query_norm)(queries)
            keys = self.get_submodule(names.key_norm)(keys)
        if base is not None:
            queries, keys = (rotate(part, texts.angles[base]) for part in (queries, keys))
        sight = Sight(self._kind.before, self._kind.after, self._shape.score_scale)
        rate = self._rates.attention if self.training else 0.0
        return attend_blocks(Heads(queries, keys, values), texts.blocks, sight, rate, texts.bias)

    def _feed_forward(self, x: Tensor) -> Tensor:
        """Return the inner states of the feed-forward layer."""
        mapped = self._map(self._names.feed_forward.inputs, self._inner_rows, x)
        first, *gates = mapped[::-1] if self._names.gate_second else mapped
        inner = self._maybe_compiled(ACTIVATIONS[self._shape.activation])(first)
        inner = inner * gates[0] if gates else inner
        return dropout(inner, self._rates.inner, self.training) if self._rates.inner else inner

    def _add_sublayer(
        self, x: Tensor, names: SublayerNames, compute: Callable[[Tensor], Tensor], rate: float
    ) -> Tensor:
        """Return x plus the output of a sublayer, after dropout, with its normalizations."""
        module, rate = self.get_submodule, rate if self.training else 0.0
        inner = compute(x if names.norm_before is None else module(names.norm_before)(x))
        update = module(names.output)(inner)
        if names.norm_of_output is not None:
            update = module(names.norm_of_output)(update)
        if names.norm_of_sum is None:
            return x + dropout(update, rate)
        norm: Any = module(names.norm_of_sum)
        return self._maybe_compiled(_norm_of_sum)(x, update, rate, (norm.weight, norm.bias, norm.eps))

    def _map(self, names: Sequence[str], rows: tuple[int, ...], x: Tensor) -> Sequence[Tensor]:
        """Apply the first maps of a sublayer, stored one by one or joined. rows: output width of each."""
        mapped = [self.get_submodule(name)(x) for name in names]
        return mapped if len(mapped) == len(rows) else mapped[0].split(rows, dim=1)

    def _add_maps(self, names: Sequence[str], rows: tuple[int, ...], bias: bool) -> None:
        for name, outer in zip(names, rows if len(names) == len(rows) else (sum(rows),), strict=True):
            self._add_map(name, self._shape.width, outer, bias)

    def _add_map(self, name: str, inner: int, outer: int, bias: bool) -> None:
        add_module(self, name, TrainableLinear(inner, outer, bias=bias, device="meta"))

    def _maybe_compiled(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return _compiled(function) if self.compiled else function


def new_norm(shape: Architecture, width: int) -> nn.Module:
    """Return a normalization of the family's kind, without values."""
    if shape.norm == "layer":
        return nn.LayerNorm(width, shape.epsilon, bias=shape.biases.norms, device="meta")
    kind = nn.RMSNorm if shape.norm == "rms" else ShiftedRMSNorm
    return kind(width, shape.epsilon, device="meta")


def add_module(root: nn.Module, name: str, module: nn.Module) -> None:
    """Add the module under its dotted name; parents that do not exist become empty modules."""
    *parents, last = name.split(".")
    for parent in parents:
        if parent not in root._modules:
            root.add_module(parent, nn.Module())
        root = root.get_submodule(parent)
    root.add_module(last, module)


def _norm_of_sum(
    x: Tensor, update: Tensor, rate: float, weight_bias_epsilon: tuple[Tensor, Tensor | None, float]
) -> Tensor:
    """Return the layer norm of x + dropout(update)."""
    return F.layer_norm(x + dropout(update, rate), x.shape[-1:], *weight_bias_epsilon)


@functools.cache
def _compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Compile for any number of tokens: one kernel for all layers."""
    return torch.compile(function, dynamic=True)
