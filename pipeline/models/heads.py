"""What stands between an encoder's vectors and a loss."""

from typing import Literal

from torch import Tensor, nn

HeadName = Literal["none", "cls_mlp"]

_STD = 0.02     # as BERT's own layers begin


class TanhHead(nn.Module):
    """tanh(W h + b), (n, dim) -> (n, dim), newly drawn: SimCSE (Gao et al. 2021), section 6.3 there."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dense = nn.Linear(dim, dim)
        nn.init.normal_(self.dense.weight, std=_STD)
        nn.init.zeros_(self.dense.bias)

    def forward(self, vectors: Tensor) -> Tensor:
        return self.dense(vectors).tanh()


def head_of(name: HeadName, dim: int) -> nn.Module:
    """The head of that name for vectors of `dim` components; "none" leaves them as they are."""
    return TanhHead(dim) if name == "cls_mlp" else nn.Identity()
