"""Linear layers tuned for a fixed batch size: oneDNN with prepacked weights on CPU, cuBLAS on GPU."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}
LEAST_ACTIVATIONS = {"gelu": -0.17, "gelu_new": -0.1701, "relu": -1e-3, "silu": -0.2785}
"""limit just below the least value of each activation"""
LinearMap = Callable[[Tensor], Tensor]
"""Linear layer with its activation: (rows, outer) for (rows, inner)."""
# by activation: the last arguments of mkldnn._linear_pointwise (operation, scalars, algorithm)
_ONEDNN: dict[str | None, tuple[str, list[Any], str]] = {
    None: ("none", [], ""),
    "gelu": ("gelu", [], "none"),  # the erf form
    "gelu_new": ("gelu", [], "tanh"),
    "relu": ("relu", [], ""),
    "silu": ("swish", [], ""),
}


class Linear:
    """`activation(x @ weight.T + bias)` for x (rows, inner).

    oneDNN's kernels use AVX-512 on every processor that has it, whereas the matrix library behind
    `F.linear` does so on Intel only (on a Zen 5 core: 265 against 115 GFLOP/s). oneDNN's kernels also compute
    the activation at no extra cost. A row's bits depend neither on its position nor on the other rows.
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
        """Return (rows, outer) in the type of the weight, for x (rows, inner) of any type."""
        x = x.to(self._weight.dtype)
        if self._onednn:
            return torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, *_ONEDNN[self._activation])
        y = F.linear(x, self._weight, self._bias)
        return ACTIVATIONS[self._activation](y) if self._activation else y


class TrainableLinear(nn.Linear):
    """`x @ weight.T + bias` for x (rows, inner), with oneDNN forward and backward if it is available.

    It reaches 180 GFLOP/s on a Zen 5 core, `nn.Linear` 96.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return (rows, outer) for x (rows, inner)."""
        return trainable_linear(x, self.weight, self.bias)


def trainable_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Apply a linear layer as `TrainableLinear` does: (rows, outer) for x (rows, inner)."""
    same_dtype = x.dtype == weight.dtype and not torch.is_autocast_enabled("cpu")
    if same_dtype and len(x) and is_onednn(weight.device, weight.dtype):
        return _OneDnnLinear.apply(x, weight, bias)
    return F.linear(x, weight, bias)


class _OneDnnLinear(torch.autograd.Function):
    """Linear layer whose backward pass also consists of linear layers, without bias.

    The input's gradient is gradient @ weight, the weight's gradient is gradient.T @ x.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        return (
            _product(gradient, weight.T) if needs_x else None,
            _product(gradient.T, x.T) if needs_weight else None,
            gradient.sum(0) if needs_bias else None,
        )


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x.contiguous(), weight, bias, *_ONEDNN[None])


def is_onednn(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether linear layers of this dtype on this device use oneDNN.

    Layers in half precision use it only if the processor has instructions for that type.
    """
    if (
        device.type != "cpu"
        or not torch.backends.mkldnn.is_available()
        or not hasattr(torch.ops.mkldnn, "_linear_pointwise")
    ):
        return False
    match dtype:
        case torch.float32:
            return True
        case torch.bfloat16:
            return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
        case torch.float16:
            return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return False  # oneDNN has no kernels for other types, float64 among them
