"""Linear layers in 8-bit integers, for processors with instructions that multiply and add these (VNNI).

Weights have a scale per output, activations a scale per row, which is found when the row is computed.
Products are added up in 32-bit integers, which is exact; so a row's bits depend neither on other rows nor on
threads.
"""

import torch
from torch import Tensor

from pipeline.device import Device
from pipeline.errors import ConfigError
from pipeline.models.layers.linear import ACTIVATIONS

ROWS_AT_ONCE = 256
"""rows of a feed-forward layer that are computed together, so that their inner values stay in the cache"""
# Adding this to a value below 2**22 puts the nearest integer into the last bits of the float32.
_ROUNDING = 1.5 * 2**23
_CODES = 255  # highest code of an activation
_LOWEST_SCALE = 1e-30  # scale of rows that are zero


class QuantizedLinear:
    """`activation(x @ weight.T + bias)` for x (rows, inner) float32, in 8-bit integers.

    A value x of a row with scale s has the code round(x / s) + zero, from 0 to 255. oneDNN has a fast kernel
    for such unsigned codes only; signed codes are computed by its reference code, a thousand times slower. So
    codes of values of both signs have their zero at 128.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        *,
        rows: int,
        activation: str | None = None,
        least: float | None = None,
    ) -> None:
        """Quantize and reorder the weight.

        Args:
            weight: (outer, inner).
            bias: (outer,) or None.
            rows: usual number of rows of x.
            activation: name in ACTIVATIONS, or None.
            least: lower limit of all values of x, just below 0; None: unknown. With a limit, nearly all codes
                are left for positive values.
        """
        outer, inner = weight.shape
        self._activation, self._bias = activation, bias
        self._zero = 128 if least is None else 16
        self._lowest_scale = _LOWEST_SCALE if least is None else -least / self._zero
        self._has_limit = least is not None
        self._rounding = torch.full((inner,), _ROUNDING + self._zero)
        self._scales = weight.abs().amax(1).clamp_min(_LOWEST_SCALE) / 127
        codes = (weight / self._scales[:, None]).round().to(torch.int8)
        self._weight = torch.ops.onednn.qlinear_prepack(codes, [rows, inner])
        self._weight_zeros = torch.zeros(outer, dtype=torch.int64)

    def __call__(self, x: Tensor) -> Tensor:
        """Return (rows, outer) for x (rows, inner)."""
        scales = self._row_scales(x)
        # a vector instead of the number: torch adds vectors five times as fast
        codes = torch.addcmul(self._rounding, x, scales.reciprocal()).view(torch.int32).to(torch.uint8)
        y = torch.ops.onednn.qlinear_pointwise(
            *(codes, 1.0, self._zero),
            *(self._weight, self._scales, self._weight_zeros, None),
            *(1.0, 0, torch.float32),
            *("none", [], ""),
        )
        y = y.mul_(scales) if self._bias is None else torch.addcmul(self._bias, y, scales, out=y)
        return ACTIVATIONS[self._activation](y) if self._activation else y

    def _row_scales(self, x: Tensor) -> Tensor:
        """Return the scale of each row, (rows, 1), that gives the row's largest value the highest code."""
        scales = x.amax(1, keepdim=True).div_(_CODES - self._zero)
        if not self._has_limit:
            scales = torch.maximum(scales, x.amin(1, keepdim=True).div_(1 - self._zero))
        return scales.clamp_min_(self._lowest_scale)


def check_int8(device: Device) -> None:
    """Check that a device has instructions for products of 8-bit integers.

    Without these, oneDNN adds pairs of products in 16 bits, which may overflow.

    Raises:
        ConfigError: it is a GPU, or the processor lacks the instructions.
    """
    if device.kind != "cpu":
        raise ConfigError(
            "encode.dtype", "float32, bfloat16 or float16 on a GPU", "int8", "set encode.dtype=bfloat16"
        )
    if not torch.cpu._is_vnni_supported() or not hasattr(torch.ops.onednn, "qlinear_pointwise"):
        raise ConfigError(
            "encode.dtype",
            "a processor with AVX512_VNNI, and a torch with oneDNN, for int8",
            f"{device.instruction_set()} without them",
            "set encode.dtype=float32, or use other machines",
        )
