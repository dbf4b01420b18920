"""Linear layers in the form that is fastest for a fixed number of rows: oneDNN with reordered weights on a CPU, cuBLAS on a GPU."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
}
_ONEDNN: dict[str | None, tuple[str, list[Any], str]] = {
    None: ("none", [], ""),
    "gelu": ("gelu", [], "none"),  # the erf form
    "gelu_new": ("gelu", [], "tanh"),
    "relu": ("relu", [], ""),
}


class Linear:
    """`activation(x @ weight.T + bias)` for x (rows, inner).

    oneDNN's own kernels use AVX-512 on every processor that has it; the matrix library behind `F.linear` does so on Intel's alone (on a Zen 5
    core: 265 against 115 GFLOP/s), and the activation costs nothing there. A row's bits depend neither on its place nor on the other rows.
    """

    def __init__(
        self, weight: Tensor, bias: Tensor | None, *, rows: int, activation: str | None = None
    ) -> None:
        self._activation = activation
        self._bias = bias
        self._onednn = is_onednn(weight.device, weight.dtype)
        self._weight = (
            torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), rows) if self._onednn else weight
        )

    def __call__(self, x: Tensor) -> Tensor:
        if self._onednn:
            return torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, *_ONEDNN[self._activation])
        y = F.linear(x, self._weight, self._bias)
        return ACTIVATIONS[self._activation](y) if self._activation else y


class TrainableLinear(nn.Linear):
    """`x @ weight.T + bias` for x (rows, inner); forward and backward through the same kernels as above where they serve (180 against 96 GFLOP/s)."""

    def forward(self, x: Tensor) -> Tensor:
        if (
            is_onednn(self.weight.device, self.weight.dtype)
            and x.dtype == self.weight.dtype
            and not torch.is_autocast_enabled("cpu")
        ):
            return _OneDnnLinear.apply(x, self.weight, self.bias)
        return F.linear(x, self.weight, self.bias)


class _OneDnnLinear(torch.autograd.Function):
    """All three products of a linear layer are linear layers without bias: of the gradient by the weight, and of the gradient's columns by the input's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        return (
            _product(gradient, weight.T.contiguous()) if of_x else None,
            _product(gradient.T.contiguous(), x.T.contiguous()) if of_weight else None,
            gradient.sum(0) if of_bias else None,
        )


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x.contiguous(), weight, bias, *_ONEDNN[None])


def is_onednn(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether linear layers of that type on that device go through oneDNN; half precision does where the processor has instructions for it."""
    if (
        device.type != "cpu"
        or not torch.backends.mkldnn.is_available()
        or not hasattr(torch.ops.mkldnn, "_linear_pointwise")
    ):
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32 or bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
