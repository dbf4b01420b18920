"""Load the layers of a packed model from a checkpoint of any family."""

import torch
from torch import Tensor

from pipeline.models.inference.packed_layer import (
    FeedForward,
    HeadNorm,
    Norm,
    PackedAttention,
    PackedLayer,
    Residual,
    norm_of_sum,
)
from pipeline.models.layers.architecture import Architecture
from pipeline.models.layers.fused import FusedKernel
from pipeline.models.layers.linear import LEAST_ACTIVATIONS, Linear, LinearMap
from pipeline.models.layers.names import Names, SublayerNames
from pipeline.models.layers.numerics import Arithmetic
from pipeline.models.layers.quantized import ROWS_AT_ONCE, QuantizedLinear
from pipeline.models.layers.rotary import rotate_by
from pipeline.models.layers.weights import Checkpoint


class LayerLoader:
    """Loader of the parts of a packed model."""

    def __init__(
        self, architecture: Architecture, names: Names, checkpoint: Checkpoint, arithmetic: Arithmetic
    ) -> None:
        self._architecture, self._names, self._checkpoint = architecture, names, checkpoint
        self._arithmetic = arithmetic
        self._fused = FusedKernel(norm_of_sum) if arithmetic.fused else None
        self._rotate = FusedKernel(rotate_by) if arithmetic.fused else None

    def table(self, name: str, rows: int) -> Tensor:
        """Load a table (rows, d) as float32."""
        return self._checkpoint.tensor(f"{name}.weight", (rows, self._architecture.width))

    def norm(self, name: str | None) -> Norm | None:
        """Load a normalization of the states; None for None."""
        if name is None:
            return None
        kind, shape = self._architecture.norm, (self._architecture.width,)
        weight = self.for_sums(self._norm_weight(name, self._architecture.width))
        has_bias = self._architecture.biases.norms
        bias = self.for_sums(self._checkpoint.tensor(f"{name}.bias", shape)) if has_bias else None
        return Norm(
            "layer" if kind == "layer" else "rms", weight, bias, self._architecture.epsilon, self._fused
        )

    def layer(self, number: int) -> PackedLayer:
        """Load a layer."""
        prefix = self._names.layer.format(i=number)
        return PackedLayer(self._attention(prefix, number), self._feed_forward(prefix))

    def for_sums(self, tensor: Tensor) -> Tensor:
        """Copy a tensor to the device, in the type of residual sums."""
        return tensor.to(self._arithmetic.torch_device, self._arithmetic.sum_dtype)

    def _on_device(self, tensor: Tensor) -> Tensor:
        """Copy a tensor to the device, in the type of the forward pass."""
        return tensor.to(self._arithmetic.torch_device, self._arithmetic.torch_dtype)

    def _attention(self, prefix: str, number: int) -> PackedAttention:
        shape, names = self._architecture, self._names.attention_of(number)
        inner, keys = shape.heads * shape.head_width, shape.key_heads * shape.head_width
        maps = self._inputs(prefix, names, (inner, keys, keys), shape.biases.inputs)
        weights, biases = zip(*maps, strict=True)
        has_bias = shape.biases.inputs
        return PackedAttention(
            residual=self._residual(prefix, names, inner, shape.biases.attention),
            inputs=self._linear(torch.cat(weights), torch.cat(biases) if has_bias else None),
            heads=shape.heads,
            key_heads=shape.key_heads,
            norm=self._head_norm(prefix),
            fused_rotation=self._rotate,
        )

    def _feed_forward(self, prefix: str) -> FeedForward:
        shape, names, rows = self._architecture, self._names.feed_forward, self._arithmetic.max_tokens
        maps = self._inputs(prefix, names, (shape.inner,) * (1 + self._names.gated), shape.biases.inner)
        activated, *gated = reversed(maps) if self._names.gate_second else maps
        return FeedForward(
            residual=self._residual(
                prefix,
                names,
                shape.inner,
                shape.biases.outer,
                least=None if gated else LEAST_ACTIVATIONS.get(shape.activation),
            ),
            activated=self._linear(*activated, shape.activation),
            gated=self._linear(*gated[0]) if gated else None,
            rows=min(ROWS_AT_ONCE, rows) if self._arithmetic.is_quantized else rows,
        )

    def _inputs(
        self, prefix: str, names: SublayerNames, rows: tuple[int, ...], has_bias: bool
    ) -> list[tuple[Tensor, Tensor | None]]:
        """Read the first maps of a sublayer, stored one by one or as one. rows: output width of each."""
        width = self._architecture.width
        if len(names.inputs) == len(rows):
            return [
                self._checkpoint.linear(prefix + name, width, outer, bias=has_bias)
                for name, outer in zip(names.inputs, rows, strict=True)
            ]
        (name,) = names.inputs
        weight, bias = self._checkpoint.linear(prefix + name, width, sum(rows), bias=has_bias)
        biases = [None] * len(rows) if bias is None else bias.split(rows)
        return list(zip(weight.split(rows), biases, strict=True))

    def _residual(
        self, prefix: str, names: SublayerNames, inner: int, has_bias: bool, least: float | None = None
    ) -> Residual:
        stored = self._checkpoint.linear(
            prefix + names.output, inner, self._architecture.width, bias=has_bias
        )
        norms = (
            None if name is None else self.norm(prefix + name)
            for name in (names.norm_before, names.norm_of_output, names.norm_of_sum)
        )
        return Residual(self._linear(*stored, least=least), *norms)

    def _head_norm(self, prefix: str) -> HeadNorm | None:
        shape, names = self._architecture, (self._names.query_norm, self._names.key_norm)
        if None in names:
            return None
        weights = (
            self._norm_weight(f"{prefix}{name}", shape.head_width).expand(count, -1)
            for name, count in zip(names, (shape.heads, shape.key_heads), strict=True)
        )
        return HeadNorm(self._on_device(torch.cat(list(weights))), shape.epsilon)

    def _norm_weight(self, name: str, width: int) -> Tensor:
        weight = self._checkpoint.tensor(f"{name}.weight", (width,))
        return weight + 1 if self._architecture.norm == "rms_around_1" else weight

    def _linear(
        self,
        weight: Tensor,
        bias: Tensor | None,
        activation: str | None = None,
        least: float | None = None,
    ) -> LinearMap:
        rows = self._arithmetic.max_tokens
        weight, bias = self._on_device(weight), None if bias is None else self._on_device(bias)
        if self._arithmetic.is_quantized:
            return QuantizedLinear(weight, bias, rows=rows, activation=activation, least=least)
        return Linear(weight, bias, rows=rows, activation=activation)
