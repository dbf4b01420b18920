"""Recurrent cells compute the published equations and their gradients."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence

from pipeline.models.classic.recurrence import CELLS, recurrence
from pipeline.models.classic.recurrent import Steps, permute_rows
from pipeline.models.spec.pooling import find_segments, pool
from tests.models.classic.recurrents import STEPS


def weights(
    cell: str, inner: int, width: int, dtype=torch.float64, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    draw, rows = torch.Generator().manual_seed(seed), CELLS[cell].gates * width
    return torch.randn(rows, inner, dtype=dtype, generator=draw) / 2, torch.randn(
        rows, width, dtype=dtype, generator=draw
    ) / 2


def one_by_one(cell, texts, inputs, recurrent):
    """Compute the states (T, width) text after text, so that autograd finds the gradients by itself."""
    states = []
    for text in texts:
        h = c = torch.zeros(recurrent.shape[1], dtype=text.dtype)
        for x in text:
            h, c = STEPS[cell](x, h, c, inputs, recurrent, torch.zeros(len(inputs), dtype=text.dtype))
            states.append(h)
    return torch.stack(states)


def together(cell, texts, inputs, recurrent):
    """Compute the states (T, width) with the packed recurrence, one step of all texts after another."""
    steps = Steps.of(np.array([len(text) for text in texts]), torch.from_numpy)
    x = permute_rows(torch.cat(texts), steps.orders[0], steps.inverses[0])
    return permute_rows(
        recurrence(CELLS[cell], x @ inputs.T, recurrent, steps.sizes), steps.inverses[0], steps.orders[0]
    )


def test_a_gru_step_matches_the_published_equations():
    inputs = torch.tensor([[0.1], [0.3], [0.5]]).double()
    recurrent = torch.tensor([[0.2], [-0.4], [0.6]]).double()
    gates, (state,) = CELLS["gru"].step(
        inputs.T, (torch.tensor([[0.5]]).double(),), CELLS["gru"].prepare(recurrent, 1)
    )
    np.testing.assert_allclose([*gates[0], *state[0]], [0.549834, 0.524979, 0.581648, 0.542864], atol=1e-6)


@pytest.mark.parametrize("cell", STEPS)
def test_packed_states_and_gradients_equal_single_steps_of_single_texts(cell):
    inputs, recurrent = (each.requires_grad_() for each in weights(cell, 5, 4))
    texts = [
        torch.randn(
            length, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(length)
        ).requires_grad_()
        for length in (3, 7, 1, 7, 2)
    ]
    leaves = [inputs, recurrent, *texts]
    toward = torch.randn(20, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    expected, found = one_by_one(cell, texts, inputs, recurrent), together(cell, texts, inputs, recurrent)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
    for gradient, reference in zip(
        torch.autograd.grad(found, leaves, toward), torch.autograd.grad(expected, leaves, toward), strict=True
    ):
        torch.testing.assert_close(gradient, reference, atol=1e-12, rtol=0)


@pytest.mark.parametrize("cell", STEPS)
def test_gradients_match_finite_differences(cell):
    _, recurrent = weights(cell, 1, 3)
    x = torch.randn(6, CELLS[cell].gates * 3, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    assert torch.autograd.gradcheck(
        lambda *leaves: recurrence(CELLS[cell], *leaves, (3, 2, 1)),
        (x.requires_grad_(), recurrent.requires_grad_()),
    )


def test_an_lstm_equals_that_of_torch():
    inputs, recurrent = weights("lstm", 5, 4)
    reference = nn.LSTM(5, 4, dtype=torch.float64)
    order = [0, 1, 3, 2]  # in torch the output gate is the last of the four
    with torch.no_grad():
        for weight, value in ((reference.weight_ih_l0, inputs), (reference.weight_hh_l0, recurrent)):
            weight.copy_(torch.cat([value.chunk(4)[index] for index in order]))
        reference.bias_ih_l0.zero_()
        reference.bias_hh_l0.zero_()
    texts = [
        torch.randn(length, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(length))
        for length in (2, 6, 4)
    ]
    states, _ = pad_packed_sequence(
        reference(pack_sequence(texts, enforce_sorted=False))[0], batch_first=True
    )
    expected = torch.cat([rows[: len(text)] for rows, text in zip(states, texts, strict=True)])
    torch.testing.assert_close(together("lstm", texts, inputs, recurrent), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("cell", STEPS)
def test_the_gradient_of_all_steps_in_one_product_is_exact_in_float32(cell):
    inputs, recurrent = (each / 4 for each in weights(cell, 40, 64, torch.float32))
    texts = [
        torch.randn(length, 40, generator=torch.Generator().manual_seed(length)) for length in (9, 30, 12, 1)
    ]
    single, double = recurrent.clone().requires_grad_(), recurrent.double().requires_grad_()
    (found,) = torch.autograd.grad(together(cell, texts, inputs, single).square().sum(), single)
    (exact,) = torch.autograd.grad(
        one_by_one(cell, [text.double() for text in texts], inputs.double(), double).square().sum(), double
    )
    assert (found - exact).norm() < 1e-5 * exact.norm()


def test_poolings_do_not_read_rows_after_the_end_of_a_text():
    # a text of two words, and two rows after its end, whose zeros exceed all values of the text
    states = torch.tensor([[-1.0, -2.0], [-3.0, -0.5], [0.0, 0.0], [0.0, 0.0]])
    where = find_segments(np.array([0]), np.array([2]), 0, torch.from_numpy)
    assert pool("max", {1: states}, 1, where).tolist() == [[-1.0, -0.5]]
    assert states.max(0).values.tolist() == [0.0, 0.0]
    assert pool("ends", {1: states}, 1, where).tolist() == [[-3.0, -2.0]]


def test_recurrent_steps_stay_in_float32_under_autocast():
    _, recurrent = weights("gru", 1, 8, torch.float32)
    x = torch.randn(12, 24, generator=torch.Generator().manual_seed(1))
    with torch.autocast("cpu", torch.bfloat16):
        states = recurrence(CELLS["gru"], x, recurrent, (4, 4, 4))
    torch.testing.assert_close(states, recurrence(CELLS["gru"], x, recurrent, (4, 4, 4)), atol=0, rtol=0)


@pytest.mark.parametrize(("cell", "width"), [("gru", 514), ("lstm", 517)])
def test_equal_rows_have_equal_states_in_every_thread(cell, width):
    _, recurrent = weights(cell, 1, width, torch.float32)
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(40, 1, len(recurrent), generator=draw)
    state = tuple(
        torch.randn(1, width, generator=draw).expand(64, -1) for _ in range(CELLS[cell].state_tensors)
    )
    products = CELLS[cell].prepare(recurrent, 64)
    torch.set_num_threads(5)  # torch splits the values of a step among them, also within a row
    for row in x:
        _, state = CELLS[cell].step(row.expand(64, -1), state, products)
        assert all(torch.equal(part, part[:1].expand(64, -1)) for part in state)
