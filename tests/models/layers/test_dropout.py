"""Dropout sets the wanted proportion of values to 0, each by itself, and scales the others."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pipeline.models.layers.dropout import dropout

SHAPE = (401, 253)  # an odd number of values


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5, 0.9])
def test_values_are_zeroed_at_the_rate_and_independently_of_each_other(rate):
    torch.manual_seed(0)
    dropped = (dropout(torch.ones(SHAPE), rate) == 0).numpy()
    deviation = np.sqrt(rate * (1 - rate) / dropped.size)
    assert dropped.mean() == pytest.approx(rate, abs=4 * deviation)
    flat = dropped.ravel().astype(float)
    for distance in (1, 2, 3, 4, SHAPE[1]):  # four neighbours share the bits of one number
        correlation = np.corrcoef(flat[:-distance], flat[distance:])[0, 1]
        assert abs(correlation) < 4 / np.sqrt(flat.size)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kept_values_and_their_gradient_are_scaled_as_by_torch(dtype):
    torch.manual_seed(0)
    x = torch.randn(SHAPE, dtype=dtype, requires_grad=True)
    y = dropout(x, 0.25)
    assert y.dtype == dtype
    expected = torch.where(y == 0, 0, x / 0.75)
    torch.testing.assert_close(y, expected)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient, torch.where(y == 0, 0.0, 1 / 0.75).to(dtype))


def test_masks_follow_from_the_generator_and_advance_it():
    x, state = torch.ones(SHAPE), torch.manual_seed(7).get_state()
    first, second = dropout(x, 0.1), dropout(x, 0.1)
    torch.set_rng_state(state)
    assert torch.equal(dropout(x, 0.1), first)
    assert not torch.equal(first, second)


@pytest.mark.parametrize(("rate", "training"), [(0.0, True), (0.3, False), (1.0, True)])
def test_without_a_draw_it_is_that_of_torch(rate, training):
    x, state = torch.randn(SHAPE), torch.get_rng_state()
    assert torch.equal(dropout(x, rate, training), F.dropout(x, rate, training))
    if rate < 1:
        assert torch.equal(torch.get_rng_state(), state)
