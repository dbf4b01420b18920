"""Heads: layers after an encoder's pooling, as a part of the encoder or for the loss only."""

from typing import Literal

from torch import nn

from pipeline.models.folder.modules import Dense
from pipeline.models.layers.post_pooling import DenseModule

HeadName = Literal["none", "cls_mlp"]


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
