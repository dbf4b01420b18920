"""The decoder computes the published equations and their gradients."""

import numpy as np
import pytest
import torch

from pipeline.models.classic.recurrence import CELLS
from pipeline.models.trainable.decoder import ConditionalDecoder
from tests.models.classic.recurrents import STEPS

LENGTHS = np.array([3, 1, 5])


def decoder_of(cell: str) -> ConditionalDecoder:
    torch.manual_seed(0)
    return ConditionalDecoder(CELLS[cell], inner=4, width=3, condition=2).draw().double()


def one_by_one(cell: str, decoder: ConditionalDecoder, words: torch.Tensor, vectors: torch.Tensor):
    """Compute the states (T, width) text after text; C v is added to W x before each activation."""
    direction, states = decoder.direction, []
    bias = torch.zeros(len(direction.recurrent)) if direction.input.bias is None else direction.input.bias
    for text, vector in zip(words.split(LENGTHS.tolist()), vectors, strict=True):
        h = c = torch.zeros(3).double()
        for x in text:
            conditioned = bias + decoder.condition.weight @ vector
            joined = torch.cat([direction.input.weight, conditioned[:, None]], dim=1)
            h, c = STEPS[cell](
                torch.cat([x, x.new_ones(1)]), h, c, joined, direction.recurrent, torch.zeros(len(bias))
            )
            states.append(h)
    return torch.stack(states)


def test_a_step_matches_the_published_equations():
    """The example worked by hand starts from the state 0.5.

    A bisection finds the first word that leads from the zero state to it.
    """
    decoder = ConditionalDecoder(CELLS["gru"], inner=1, width=1, condition=1).double()
    with torch.no_grad():
        decoder.direction.input.weight.copy_(torch.tensor([[0.1], [0.3], [0.5]]))
        decoder.direction.recurrent.copy_(torch.tensor([[0.2], [-0.4], [0.6]]))
        decoder.condition.weight.copy_(torch.tensor([[0.1], [-0.2], [0.3]]))

        def states(first: float) -> list[float]:
            words, vector = torch.tensor([[first], [1.0]]).double(), torch.tensor([[0.7]]).double()
            return decoder(words, vector, np.array([2])).flatten().tolist()

        low, high = 0.0, 10.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if states(middle)[0] < 0.5 else (low, middle)
        assert states(low) == pytest.approx([0.5, 0.601177], abs=1e-6)


@pytest.mark.parametrize("cell", STEPS)
def test_states_and_gradients_equal_single_steps_of_single_texts(cell: str):
    decoder, generator = decoder_of(cell), torch.Generator().manual_seed(1)
    words = torch.randn(9, 4, generator=generator).double().requires_grad_()
    vectors = torch.randn(3, 2, generator=generator).double().requires_grad_()
    direction = torch.randn(9, 3, generator=generator).double()
    tensors = [words, vectors, *decoder.parameters()]
    found = decoder(words, vectors, LENGTHS)
    expected = one_by_one(cell, decoder, words, vectors)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-10)
    for gradient, reference in zip(
        torch.autograd.grad((found * direction).sum(), tensors),
        torch.autograd.grad((expected * direction).sum(), tensors),
        strict=True,
    ):
        torch.testing.assert_close(gradient, reference, atol=1e-12, rtol=1e-10)
        assert gradient.abs().max() > 0


def test_new_weights_are_drawn_gate_by_gate():
    decoder = ConditionalDecoder(CELLS["gru"], inner=5, width=40, condition=60).draw()
    for gate in decoder.direction.recurrent.split(40):
        torch.testing.assert_close(gate @ gate.T, torch.eye(40), atol=1e-5, rtol=0)
    bound = (6 / (40 + 60)) ** 0.5  # Xavier
    for gate in decoder.condition.weight.split(40):
        assert 0.95 * bound < gate.abs().max() <= bound
