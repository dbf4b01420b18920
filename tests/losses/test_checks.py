"""Finite values pass, and rows that are not finite are counted, whatever their sum."""

import math

import pytest
import torch

from pipeline.errors import ModelError
from pipeline.losses.checks import require_finite

LARGEST = torch.finfo(torch.float32).max


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_finite_values_pass_even_if_their_sum_overflows(dtype: torch.dtype):
    x = torch.full((3, 4), torch.finfo(dtype).max, dtype=dtype)
    assert not math.isfinite(float(x.sum()))
    assert require_finite("x", x) is x
    assert require_finite("x", -x / 16).dtype == dtype


@pytest.mark.parametrize(
    ("row", "other"),
    [
        ([math.nan, 0.0], [1.0, 2.0]),
        ([math.inf, -math.inf], [1.0, 2.0]),
        ([-math.inf, 0.0], [LARGEST, LARGEST]),
        ([math.inf, -LARGEST], [-LARGEST, -LARGEST]),
    ],
)
def test_rows_with_nan_or_infinity_are_counted(row: list[float], other: list[float]):
    x = torch.tensor([other, row, other, row, other], requires_grad=True)
    with pytest.raises(ModelError, match="2 of 5 rows with NaN or infinity"):
        require_finite("x", x)
