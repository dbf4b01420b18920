"""What follows the pooling: Dense layers and normalisation, in float32."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.errors import ModelError
from pipeline.models.folder import Dense, EncoderFolder
from pipeline.models.weights import Checkpoint, open_weights

_ROWS = 64      # a linear layer gives equal bits for equal rows while it sees one shape: always so many rows, filled with zeros
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "Identity": lambda x: x, "Tanh": torch.tanh, "ReLU": F.relu, "GELU": F.gelu, "Sigmoid": torch.sigmoid, "SiLU": F.silu,
}
MLP_HEADS = ("mlp.dense", "pooler.dense")              # SimCSE's own name, and the one its published checkpoints carry


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


def load_tail(folder: EncoderFolder, device: torch.device) -> list[Callable[[Tensor], Tensor]]:
    """The modules after the pooling, ready to be called in order."""
    return [load_dense(folder, module, device) if isinstance(module, Dense) else normalize for module in folder.tail]


def load_mlp(checkpoint: Checkpoint, width: int, device: torch.device) -> DenseLayer:
    """The layer of `cls_mlp` (Gao et al. 2021): tanh(W h + b)."""
    name = next((name for name in MLP_HEADS if f"{name}.weight" in checkpoint), None)
    if name is None:
        found = f"neither {' nor '.join(MLP_HEADS)} among the weights"
        raise ModelError("encoder.pooling cls_mlp", "the trained layer behind the first token's state", found, "choose cls, or an encoder that has the layer")
    weight, bias = checkpoint.linear(name, width, width)
    return DenseLayer(weight.to(device), None if bias is None else bias.to(device), torch.tanh, False, None)


def normalize(x: Tensor) -> Tensor:
    """Rows of length one; a zero row stays zero."""
    return F.normalize(x, dim=-1)


def load_dense(folder: EncoderFolder, module: Dense, device: torch.device) -> DenseLayer:
    """A Dense module of the folder. ModelError for an activation that is not known, and for weights that do not fit."""
    if module.activation not in ACTIVATIONS:
        where = str(folder.file(module.weights).parent / "config.json")
        raise ModelError(where, f"an activation among {', '.join(ACTIVATIONS)}", module.activation, "use an encoder with one of these")
    weights = open_weights(folder.file(module.weights))
    weight, bias = weights.linear("linear", module.in_features, module.out_features, bias=module.bias)
    projected = module.residual and module.in_features != module.out_features
    projection = weights.tensor("residual.weight", (module.out_features, module.in_features)).to(device) if projected else None
    return DenseLayer(weight.to(device), None if bias is None else bias.to(device), ACTIVATIONS[module.activation], module.residual, projection)
