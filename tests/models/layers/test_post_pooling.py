"""The bits of a dense layer after the pooling do not depend on a row's position."""

import pytest
import torch

from pipeline.models.folder.modules import Dense
from pipeline.models.layers.post_pooling import DenseModule, FixedRows


@pytest.mark.parametrize("inner", [10, 33, 48])
@pytest.mark.parametrize("outer", [1, 2, 7, 11, 12, 16])
@pytest.mark.parametrize("residual", [False, True])
def test_a_row_has_the_same_bits_at_every_position(inner: int, outer: int, residual: bool):
    torch.manual_seed(0)
    dense = Dense("", inner, outer, bias=True, activation="Tanh", residual=residual)
    module = DenseModule(dense).requires_grad_(False)
    module.draw()
    x, order = torch.randn(150, inner), torch.randperm(150)
    y = FixedRows(module)(x)
    expected = torch.tanh(x @ module.linear.weight.T)
    if residual:
        expected = expected + x @ module.residual.weight.T
    assert torch.allclose(y, expected, atol=1e-5)
    assert torch.equal(FixedRows(module)(x[order]), y[order])
