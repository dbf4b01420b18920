"""Modules after the pooling: Dense layers, normalization and denoising of template vectors, in float32."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.errors import ModelError
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.modules import Cut, Denoising, Dense, Module
from pipeline.models.layers import linear
from pipeline.models.layers.weights import Checkpoint, open_weights

# rows per matrix product, padded with zeros: with one shape, a row's bits do not depend on the other rows
_ROWS = 64
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "Identity": lambda x: x,
    "Tanh": torch.tanh,
    "ReLU": F.relu,
    "GELU": F.gelu,
    "Sigmoid": torch.sigmoid,
    "SiLU": F.silu,
}
_MLP_HEADS = ("mlp.dense", "pooler.dense")  # names in SimCSE's code and in its published checkpoints


@dataclass(frozen=True)
class DenseLayer:
    """`activation(x @ weight.T + bias)`, plus x or its projection if the module is residual."""

    weight: Tensor
    bias: Tensor | None
    activation: Callable[[Tensor], Tensor]
    residual: bool
    projection: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        """Return (n, out) for x (n, in)."""
        short = -len(x) % _ROWS
        parts = F.pad(x, (0, 0, 0, short)).split(_ROWS)
        return torch.cat([self._rows(part) for part in parts])[: len(x)]

    def _rows(self, x: Tensor) -> Tensor:
        y = self.activation(F.linear(x, self.weight, self.bias))
        if not self.residual:
            return y
        return y + (x if self.projection is None else F.linear(x, self.projection))


class ByLength:
    """Module whose second argument is the number of tokens of each text, (n,) int64."""


@dataclass(frozen=True)
class DenoiseLayer(ByLength):
    """`layer(x)` minus the vector of the bare template, looked up by the text's length (PromptBERT)."""

    layer: Callable[[Tensor], Tensor]
    table: Tensor
    """(lengths, d)"""
    shortest: int
    """text length, in tokens, of the table's first row"""

    def __call__(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Return (n, d) for x (n, d) of texts with `lengths` (n,) tokens."""
        return self.layer(x) - self.table[lengths - self.shortest]


def load_tail(folder: EncoderFolder, device: torch.device) -> list[Callable[..., Tensor]]:
    """Load the modules after the pooling, to be applied by `through`."""
    return [_loaded(folder, module, device) for module in folder.tail]


def through(tail: Iterable[Callable[..., Tensor]], x: Tensor, lengths: np.ndarray) -> Tensor:
    """Apply the modules after the pooling.

    Args:
        tail: modules in order.
        x: (n, d) pooled vectors.
        lengths: (n,) tokens of each text.

    Returns:
        (n, out)
    """
    for module in tail:
        x = module(x, torch.from_numpy(lengths).to(x.device)) if isinstance(module, ByLength) else module(x)
    return x


def mlp_name(weights: Checkpoint) -> str | None:
    """Name of the `cls_mlp` layer in the weights, complete or not; None if there is no such layer."""
    parts = ("weight", "bias")
    return next((name for name in _MLP_HEADS if any(f"{name}.{part}" in weights for part in parts)), None)


def load_mlp(checkpoint: Checkpoint, width: int, device: torch.device) -> DenseLayer:
    """Load the layer of `cls_mlp`, tanh(W h + b) (SimCSE, Gao et al. 2021).

    Raises:
        ModelError: the weights have no such layer.
    """
    name = mlp_name(checkpoint)
    if name is None:
        found = f"neither {' nor '.join(_MLP_HEADS)} among the weights"
        raise ModelError(
            "encoder.pooling cls_mlp",
            "the trained layer behind the first token's state",
            found,
            "choose cls, or an encoder that has the layer",
        )
    weight, bias = checkpoint.linear(name, width, width)
    return DenseLayer(weight.to(device), None if bias is None else bias.to(device), torch.tanh, False, None)


def normalize(x: Tensor) -> Tensor:
    """Scale rows to length one; a zero row stays zero."""
    return F.normalize(x, dim=-1)


def _loaded(folder: EncoderFolder, module: Module, device: torch.device) -> Callable[..., Tensor]:
    if isinstance(module, str):
        return normalize
    if isinstance(module, Cut):
        return lambda x: x[:, : module.width]
    if isinstance(module, Dense):
        return load_dense(folder, module, device)
    return load_denoise(folder, module, device)


def load_denoise(folder: EncoderFolder, module: Denoising, device: torch.device) -> DenoiseLayer:
    """Load a Denoise module of the folder.

    Raises:
        ModelError: max_length is above the lengths in the module's table.
    """
    weights, width = open_weights(folder.file(module.weights)), module.width
    table = weights.tensor("table").to(device)
    if folder.max_length - module.shortest >= len(table):
        longest = module.shortest + len(table) - 1
        raise ModelError(
            "encoder.max_length",
            f"at most {longest}, the longest text that the folder's Denoise module supports",
            str(folder.max_length),
            "lower it",
        )
    if module.activation is None:
        return DenoiseLayer(lambda x: x, table, module.shortest)
    weight, bias = weights.linear("transform.dense", width, width)
    scale = weights.tensor("transform.norm.weight", (width,)).to(device)
    shift = weights.tensor("transform.norm.bias", (width,)).to(device)
    bias = None if bias is None else bias.to(device)
    dense = DenseLayer(weight.to(device), bias, linear.ACTIVATIONS[module.activation], False, None)

    def transform(x: Tensor) -> Tensor:
        return F.layer_norm(dense(x), (width,), scale, shift, module.epsilon)

    return DenoiseLayer(transform, table, module.shortest)


def load_dense(folder: EncoderFolder, module: Dense, device: torch.device) -> DenseLayer:
    """Load a Dense module of the folder.

    Raises:
        ModelError: its activation is unknown, or its weights do not match its configuration.
    """
    if module.activation not in ACTIVATIONS:
        where = str(folder.file(module.weights).parent / "config.json")
        raise ModelError(
            where,
            f"an activation among {', '.join(ACTIVATIONS)}",
            module.activation,
            "use an encoder with one of these",
        )
    weights = open_weights(folder.file(module.weights))
    weight, bias = weights.linear("linear", module.in_features, module.out_features, bias=module.bias)
    bias = None if bias is None else bias.to(device)
    projection = None
    if module.residual and module.in_features != module.out_features:
        shape = (module.out_features, module.in_features)
        projection = weights.tensor("residual.weight", shape).to(device)
    return DenseLayer(weight.to(device), bias, ACTIVATIONS[module.activation], module.residual, projection)
