"""What follows the pooling: Dense layers, normalisation, and what is taken off a template's vectors, in float32."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.errors import ModelError
from pipeline.models.folder.folder import EncoderFolder
from pipeline.models.folder.modules import Cut, Denoise, Dense, Module
from pipeline.models.layers import linear
from pipeline.models.layers.weights import Checkpoint, open_weights

_ROWS = 64  # a linear layer gives equal bits for equal rows while it sees one shape: always so many rows, filled with zeros
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "Identity": lambda x: x,
    "Tanh": torch.tanh,
    "ReLU": F.relu,
    "GELU": F.gelu,
    "Sigmoid": torch.sigmoid,
    "SiLU": F.silu,
}
_MLP_HEADS = ("mlp.dense", "pooler.dense")  # SimCSE's own name, and the one its published checkpoints carry


@dataclass(frozen=True)
class DenseLayer:
    """`activation(x @ weight.T + bias)`, plus x or its projection where the module is residual."""

    weight: Tensor
    bias: Tensor | None
    activation: Callable[[Tensor], Tensor]
    residual: bool
    projection: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        """(n, out) for (n, in)."""
        short = -len(x) % _ROWS
        parts = F.pad(x, (0, 0, 0, short)).split(_ROWS)
        return torch.cat([self._rows(part) for part in parts])[: len(x)]

    def _rows(self, x: Tensor) -> Tensor:
        y = self.activation(F.linear(x, self.weight, self.bias))
        if not self.residual:
            return y
        return y + (x if self.projection is None else F.linear(x, self.projection))


class ByLength:
    """A module that takes how many tokens each text has, (n,) int64, beside the vectors."""


@dataclass(frozen=True)
class DenoiseLayer(ByLength):
    """`layer(x)` less the row of the table for each text's length: what its template gives without it."""

    layer: Callable[[Tensor], Tensor]
    table: Tensor
    """(lengths, d)"""
    shortest: int
    """tokens that the first row is for"""

    def __call__(self, x: Tensor, lengths: Tensor) -> Tensor:
        """(n, d) for (n, d)."""
        return self.layer(x) - self.table[lengths - self.shortest]


def load_tail(folder: EncoderFolder, device: torch.device) -> list[Callable[..., Tensor]]:
    """The modules after the pooling, ready for `through`."""
    return [_loaded(folder, module, device) for module in folder.tail]


def through(tail: Iterable[Callable[..., Tensor]], x: Tensor, lengths: np.ndarray) -> Tensor:
    """The vectors (n, d) of texts of so many tokens behind all modules of the tail."""
    for module in tail:
        x = module(x, torch.from_numpy(lengths).to(x.device)) if isinstance(module, ByLength) else module(x)
    return x


def mlp_name(weights: Checkpoint) -> str | None:
    """Name of the layer of `cls_mlp` that the weights hold, or hold a part of; None if they hold none."""
    parts = ("weight", "bias")
    return next((name for name in _MLP_HEADS if any(f"{name}.{part}" in weights for part in parts)), None)


def load_mlp(checkpoint: Checkpoint, width: int, device: torch.device) -> DenseLayer:
    """The layer of `cls_mlp` (Gao et al. 2021): tanh(W h + b)."""
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
    """Rows of length one; a zero row stays zero."""
    return F.normalize(x, dim=-1)


def _loaded(folder: EncoderFolder, module: Module, device: torch.device) -> Callable[..., Tensor]:
    if isinstance(module, str):
        return normalize
    if isinstance(module, Cut):
        return lambda x: x[:, : module.width]
    return (
        load_dense(folder, module, device)
        if isinstance(module, Dense)
        else load_denoise(folder, module, device)
    )


def load_denoise(folder: EncoderFolder, module: Denoise, device: torch.device) -> DenoiseLayer:
    """A Denoise module of the folder. ModelError for texts longer than its table is for."""
    weights, width = open_weights(folder.file(module.weights)), module.width
    table = weights.tensor("table").to(device)
    if folder.max_length - module.shortest >= len(table):
        longest = module.shortest + len(table) - 1
        raise ModelError(
            "encoder.max_length",
            f"at most the {longest} tokens that the folder's Denoise module is made for",
            str(folder.max_length),
            "lower it",
        )
    if module.activation is None:
        return DenoiseLayer(lambda x: x, table, module.shortest)
    weight, bias = weights.linear("transform.dense", width, width)
    scale, shift = (
        weights.tensor(f"transform.norm.{part}", (width,)).to(device) for part in ("weight", "bias")
    )
    dense = DenseLayer(
        weight.to(device),
        None if bias is None else bias.to(device),
        linear.ACTIVATIONS[module.activation],
        False,
        None,
    )
    return DenoiseLayer(
        lambda x: F.layer_norm(dense(x), (width,), scale, shift, module.epsilon), table, module.shortest
    )


def load_dense(folder: EncoderFolder, module: Dense, device: torch.device) -> DenseLayer:
    """A Dense module of the folder. ModelError for an activation that is not known, and for weights that do not fit."""
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
    projected = module.residual and module.in_features != module.out_features
    projection = (
        weights.tensor("residual.weight", (module.out_features, module.in_features)).to(device)
        if projected
        else None
    )
    return DenseLayer(
        weight.to(device),
        None if bias is None else bias.to(device),
        ACTIVATIONS[module.activation],
        module.residual,
        projection,
    )
