"""Dropout with masks that are drawn fast on a CPU."""

import torch
import torch.nn.functional as F
from torch import Tensor

_LEVELS = 1 << 16  # a value is kept if 16 random bits, as a number, are at least rate * _LEVELS
_LEAST, _NUMBERS = -(1 << 63), 4  # the lowest int64, and the numbers of 16 bits in each


def dropout(x: Tensor, rate: float, training: bool = True) -> Tensor:
    """Set each value to 0 with probability `rate`, and scale the others so that the mean stays.

    On a CPU, F.dropout draws 64 bits for each value. That takes a tenth of a training step of a small encoder
    (5.7 ns for each value on a Zen 4 core), and the 16 bits drawn here a fifth of it. The rate is rounded to
    1/65,536. Masks come from torch's generator.
    """
    limit = round(rate * _LEVELS)
    is_trivial = not training or not 0 < limit < _LEVELS
    if is_trivial or x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, rate, training)
    words = torch.empty(-(-x.numel() // _NUMBERS), dtype=torch.int64).random_(_LEAST, None)
    kept = (words.view(torch.int16)[: x.numel()] >= limit - _LEVELS // 2).view(x.shape)
    return x * kept * (_LEVELS / (_LEVELS - limit))
