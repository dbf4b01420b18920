"""Modules after the pooling, in float32: dense layers and heads, normalization, truncation, denoising.

Their parameters have the names that sentence-transformers gives them.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.errors import ModelError
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.modules import Denoising, Dense, Module, Truncation
from pipeline.models.layers import linear
from pipeline.models.layers.weights import Checkpoint, open_files

HeadName = Literal["none", "cls_mlp"]
_ROWS = 64  # rows of each matrix product, see FixedRows
_STD = 0.02  # standard deviation of new weights, as in BERT
_ELEMENTWISE: tuple[type[nn.Module], ...] = (
    *(nn.Identity, nn.Tanh, nn.ReLU, nn.GELU, nn.Sigmoid, nn.SiLU, nn.CELU, nn.ELU, nn.Hardshrink),
    *(nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh, nn.LeakyReLU, nn.LogSigmoid, nn.Mish, nn.PReLU, nn.RReLU),
    *(nn.ReLU6, nn.SELU, nn.Softplus, nn.Softshrink, nn.Softsign, nn.Tanhshrink),
)
_ROW_WISE: tuple[type[nn.Module], ...] = (nn.Softmax, nn.LogSoftmax, nn.Softmin)
# sentence-transformers saves the name of the class, and makes the activation without arguments
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    **{kind.__name__: kind for kind in _ELEMENTWISE},
    **{kind.__name__: partial(kind, dim=-1) for kind in _ROW_WISE},
}
"""functions that make the activation of a dense layer, by name in torch.nn"""
# Names in SimCSE's code, in its published checkpoints, and in RoBERTa's models for sequence classification.
_MLP_HEADS = ("mlp.dense", "pooler.dense", "classifier.dense")


def draw_weights(layer: nn.Linear) -> nn.Linear:
    """Draw new weights from torch's generator, N(0, 0.02), set the biases to zero, and return the layer."""
    nn.init.normal_(layer.weight, std=_STD)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


class DenseModule(nn.Module):
    """`activation(x @ weight.T + bias)`, plus x or its projection if the module is residual."""

    def __init__(self, config: Dense) -> None:
        super().__init__()
        inner, outer = config.in_features, config.out_features
        self.config = config
        self.linear = nn.Linear(inner, outer, config.bias)
        self.activation_function = ACTIVATIONS[config.activation]()
        self.residual = nn.Linear(inner, outer, False) if config.residual and inner != outer else None

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, out) for x (n, in)."""
        y: Tensor = self.activation_function(_product(self.linear, x))
        if not self.config.residual:
            return y
        return y + (x if self.residual is None else _product(self.residual, x))

    def draw(self) -> None:
        """Draw new weights as `draw_weights` does."""
        for layer in self.children():
            if isinstance(layer, nn.Linear):
                draw_weights(layer)


def _product(layer: nn.Linear, x: Tensor) -> Tensor:
    """Return (n, out), the layer applied to x (n, in).

    x is padded to a multiple of 4 columns: otherwise, if the output is narrow, a row's bits would depend on
    the row's position.
    """
    missing = -layer.in_features % 4
    if not missing:
        return layer(x)
    return F.linear(F.pad(x, (0, missing)), F.pad(layer.weight, (0, missing)), layer.bias)


class Normalize(nn.Module):
    """Scale rows to length one; a zero row stays zero."""

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, d) for x (n, d)."""
        return F.normalize(x, dim=-1)


class TruncationModule(nn.Module):
    """Keep the first `width` components."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, width) for x (n, d)."""
        return x[:, : self.width]


class DenoiseTransform(nn.Module):
    """norm(activation(W h + b)), the layer before the decoder in the head of a masked language model."""

    def __init__(self, width: int, activation: str, epsilon: float) -> None:
        super().__init__()
        self.dense, self.norm = nn.Linear(width, width), nn.LayerNorm(width, epsilon)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, d) for x (n, d)."""
        return self.norm(linear.ACTIVATIONS[self.activation](self.dense(x)))


class DenoiseModule(nn.Module):
    """Subtract the vector of the empty template from `transform(x)`.

    The table has this vector for each length of text, because the positions of the template's tokens depend
    on the length. PromptBERT (Jiang et al. 2022), section 4.3.
    """

    table: Tensor

    def __init__(self, transform: nn.Module | None, table: Tensor, shortest: int) -> None:
        """Use a transform and a table.

        Args:
            transform: applied to the vectors; the table contains its outputs already. None: no transform.
            table: (lengths, d) vectors of the template alone, by the text's number of tokens.
            shortest: number of tokens of the texts that the first row is for.
        """
        super().__init__()
        self.transform, self.shortest = transform, shortest
        self.register_buffer("table", table)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Return (n, d) for x (n, d) of texts with `lengths` (n,) tokens."""
        transformed = x if self.transform is None else self.transform(x)
        return transformed - self.table[lengths - self.shortest]

    def config(self) -> Denoising:
        """Return the module's configuration for config.json; the path of its weights is empty."""
        assert isinstance(self.transform, DenoiseTransform | None)
        width = self.table.shape[1]
        if self.transform is None:
            return Denoising("", width, None, 0.0, self.shortest)
        return Denoising("", width, self.transform.activation, self.transform.norm.eps, self.shortest)


def new_dense(in_features: int, out_features: int, activation: Literal["Tanh", "Identity"]) -> DenseModule:
    """Create a layer that keeps the scale of its input, even if many such layers are stacked.

    It maps (n, in_features) to (n, out_features). New weights are drawn as by Glorot & Bengio (2010), with
    the gain of the activation; biases are zero.
    """
    layer = DenseModule(
        Dense("", in_features, out_features, bias=True, activation=activation, residual=False)
    )
    gain = nn.init.calculate_gain("tanh" if activation == "Tanh" else "linear")
    nn.init.xavier_uniform_(layer.linear.weight, gain)
    nn.init.zeros_(layer.linear.bias)
    return layer


class TanhHead(DenseModule):
    """tanh(W h + b), (n, dim) -> (n, dim), with new weights (SimCSE: Gao et al. 2021, section 6.3)."""

    def __init__(self, dim: int) -> None:
        super().__init__(
            Dense("", in_features=dim, out_features=dim, bias=True, activation="Tanh", residual=False)
        )
        self.draw()


def head_of(name: HeadName, dim: int) -> nn.Module:
    """Return the head of that name for vectors of `dim` components; "none" does not change them."""
    return TanhHead(dim) if name == "cls_mlp" else nn.Identity()


class FixedRows(nn.Module):
    """Apply a module to blocks of 64 rows, the last block padded with zeros.

    As all products have one shape, a row's bits do not depend on the other rows.
    """

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, out) for x (n, d)."""
        padded = F.pad(x, (0, 0, 0, -len(x) % _ROWS))
        return torch.cat([self.inner(part) for part in padded.split(_ROWS)])[: len(x)]


def load_tail(folder: EncoderFolder, *, fixed_rows: bool = False) -> nn.ModuleList:
    """Load the modules after the pooling, to be applied by `apply_tail`.

    Args:
        folder: the encoder's folder.
        fixed_rows: apply linear layers through `FixedRows`, for inference.

    Raises:
        ModelError: a module cannot be used, or its weights do not match its configuration.
    """
    tail = nn.ModuleList(_load_module(folder, module) for module in folder.tail)
    if fixed_rows:
        for number, module in enumerate(tail):
            if isinstance(module, DenseModule):
                tail[number] = FixedRows(module)
            elif isinstance(module, DenoiseModule) and module.transform is not None:
                module.transform = FixedRows(module.transform)
    return tail


def apply_tail(tail: Iterable[nn.Module], x: Tensor, lengths: np.ndarray) -> Tensor:
    """Apply the modules after the pooling.

    Args:
        tail: modules in order.
        x: (n, d) pooled vectors.
        lengths: (n,) tokens of each text.

    Returns:
        (n, out)
    """
    for module in tail:
        if isinstance(module, DenoiseModule):
            x = module(x, torch.from_numpy(lengths).to(x.device))
        else:
            x = module(x)
    return x


def mlp_name(weights: Checkpoint) -> str | None:
    """Return the name of the `cls_mlp` layer; None if the weights have neither its weight nor its bias."""
    return next(
        (name for name in _MLP_HEADS if f"{name}.weight" in weights or f"{name}.bias" in weights), None
    )


def load_mlp(checkpoint: Checkpoint, width: int) -> DenseModule:
    """Load the layer of `cls_mlp`, tanh(W h + b) (SimCSE, Gao et al. 2021).

    Raises:
        ModelError: the weights have no such layer.
    """
    name = mlp_name(checkpoint)
    if name is None:
        raise ModelError(
            "encoder.pooling cls_mlp",
            "the trained layer after the first token's state",
            f"neither {' nor '.join(_MLP_HEADS)} among the weights",
            "choose cls, or an encoder that has the layer",
        )
    layer = DenseModule(Dense("", width, width, bias=True, activation="Tanh", residual=False))
    checkpoint.fill(layer.linear, f"{name}.")
    return layer


def _load_module(folder: EncoderFolder, module: Module) -> nn.Module:
    if isinstance(module, Dense):
        return _load_dense(folder, module)
    if isinstance(module, Denoising):
        return _load_denoise(folder, module)
    if isinstance(module, Truncation):
        return TruncationModule(module.width)
    return Normalize()


def _load_dense(folder: EncoderFolder, config: Dense) -> DenseModule:
    if config.activation not in ACTIVATIONS:
        raise ModelError(
            str(folder.file(config.weights).parent / "config.json"),
            f"an activation among {', '.join(ACTIVATIONS)}",
            config.activation,
            "use an encoder with one of these",
        )
    module, weights = DenseModule(config), _open_weights(folder, config)
    if not config.bias and "linear.bias" in weights:
        raise ModelError(
            str(folder.file(config.weights)),
            "no linear.bias, since config.json has bias false",
            "linear.bias",
            "restore the files",
        )
    weights.fill(module)
    return module


def _load_denoise(folder: EncoderFolder, config: Denoising) -> DenoiseModule:
    weights = _open_weights(folder, config)
    table = weights.tensor("table")
    longest = config.shortest + len(table) - 1
    if folder.max_length > longest:
        raise ModelError(
            "encoder.max_length",
            f"at most {longest}, the longest text that the folder's Denoise module supports",
            str(folder.max_length),
            "lower it",
        )
    if config.activation is None:
        return DenoiseModule(None, table, config.shortest)
    transform = DenoiseTransform(config.width, config.activation, config.epsilon)
    weights.fill(transform, "transform.")
    return DenoiseModule(transform, table, config.shortest)


def _open_weights(folder: EncoderFolder, config: Dense | Denoising) -> Checkpoint:
    file = folder.file(config.weights)
    return open_files(str(file), [file])


class SavedModule(NamedTuple):
    """Contents of the folder of a module."""

    kind: str
    """class name in sentence-transformers; or Denoise, a class of `template_modules`"""
    config: dict[str, Any]
    tensors: Mapping[str, Tensor]


def saved_module(layer: nn.Module) -> SavedModule:
    """Return the files of a layer after the pooling."""
    if isinstance(layer, DenseModule):
        dense = layer.config
        module = "linear" if dense.activation == "Identity" else "activation"
        config: dict[str, object] = {
            "in_features": dense.in_features,
            "out_features": dense.out_features,
            "bias": dense.bias,
            "activation_function": f"torch.nn.modules.{module}.{dense.activation}",
        }
        config |= {"use_residual": True} if dense.residual else {}
        return SavedModule("Dense", config, layer.state_dict())
    if isinstance(layer, DenoiseModule):
        denoising = layer.config()
        config = {
            "width": denoising.width,
            "activation": denoising.activation,
            "epsilon": denoising.epsilon,
            "shortest": denoising.shortest,
            "longest": denoising.shortest + len(layer.table) - 1,
        }
        return SavedModule("Denoise", config, layer.state_dict())
    return SavedModule("Normalize", {}, {})
