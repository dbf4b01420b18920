"""Layers that stand behind an encoder's pooling: in its folder, or between its vectors and a loss."""

from typing import Literal

from torch import Tensor, nn

from pipeline.models.folder.modules import Dense
from pipeline.models.layers.post_pooling import ACTIVATIONS

HeadName = Literal["none", "cls_mlp"]

_STD = 0.02  # as BERT's own layers begin


def drawn(layer: nn.Linear) -> nn.Linear:
    """The layer itself with new weights from torch's generator: N(0, 0.02), zero biases."""
    nn.init.normal_(layer.weight, std=_STD)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


class DenseModule(nn.Module):
    """`activation(x @ weight.T + bias)`, plus x or its projection where residual; parameters under
    sentence-transformers' names.
    """

    def __init__(self, described: Dense) -> None:
        super().__init__()
        self.described = described
        self.linear = nn.Linear(described.in_features, described.out_features, described.bias)
        projected = described.residual and described.in_features != described.out_features
        self.residual = (
            nn.Linear(described.in_features, described.out_features, bias=False) if projected else None
        )

    def forward(self, x: Tensor) -> Tensor:
        """(n, out) for (n, in)."""
        y = ACTIVATIONS[self.described.activation](self.linear(x))
        if not self.described.residual:
            return y
        return y + (x if self.residual is None else self.residual(x))

    def draw(self) -> None:
        """New weights from torch's generator, as of `drawn`."""
        for layer in (layer for layer in (self.linear, self.residual) if layer is not None):
            drawn(layer)


class TanhHead(DenseModule):
    """tanh(W h + b), (n, dim) -> (n, dim), newly drawn: SimCSE (Gao et al. 2021), section 6.3 there."""

    def __init__(self, dim: int) -> None:
        super().__init__(Dense("", dim, dim, True, "Tanh", False))
        self.draw()


def head_of(name: HeadName, dim: int) -> nn.Module:
    """The head of that name for vectors of `dim` components; "none" leaves them as they are."""
    return TanhHead(dim) if name == "cls_mlp" else nn.Identity()
