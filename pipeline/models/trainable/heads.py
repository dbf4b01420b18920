"""Layers that stand behind an encoder's pooling: in its folder, or between its vectors and a loss."""

from typing import Literal

from torch import nn

from pipeline.models.folder.modules import Dense
from pipeline.models.layers.post_pooling import DenseModule

HeadName = Literal["none", "cls_mlp"]


class TanhHead(DenseModule):
    """tanh(W h + b), (n, dim) -> (n, dim), newly drawn: SimCSE (Gao et al. 2021), section 6.3 there."""

    def __init__(self, dim: int) -> None:
        super().__init__(Dense("", dim, dim, True, "Tanh", False))
        self.draw()


def head_of(name: HeadName, dim: int) -> nn.Module:
    """The head of that name for vectors of `dim` components; "none" leaves them as they are."""
    return TanhHead(dim) if name == "cls_mlp" else nn.Identity()
