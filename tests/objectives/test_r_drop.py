"""R-Drop: two passes over a pair agree on its class."""

import numpy as np
import pytest
import torch

from pipeline.objectives import Batch
from pipeline.objectives.r_drop import RDrop
from pipeline.train.gradcache import loss_and_backward
from tests.objectives.tiny import Tiny, assert_same, batch_of, pop_gradients, texts


def pairs(rows: int) -> Batch:
    return batch_of({"premise": texts(rows, 1), "hypothesis": texts(rows, 2), "label": np.arange(rows) % 3})


@pytest.mark.parametrize(("alpha", "loss"), [(1.0, 1.138400), (5.0, 1.492711)])
def test_the_loss_of_two_distributions_matches_a_hand_computation(alpha: float, loss: float):
    objective = RDrop(Tiny(dim=3), alpha=alpha, features=("u",))
    objective.classifier = torch.nn.Identity()  # the premise's vector is the logits
    first, second = (torch.tensor([row]).double().log() for row in ([0.7, 0.2, 0.1], [0.5, 0.3, 0.2]))
    found = objective.loss((first, first, second, first), pairs(1))
    assert found.total.item() == pytest.approx(loss, abs=1e-6)
    assert found.parts["cross_entropy"].item() == pytest.approx(1.049822, abs=1e-6)
    assert found.parts["divergence"].item() == pytest.approx(alpha * 0.088578, abs=1e-5)


def test_without_dropout_the_divergence_is_zero():
    objective = RDrop(Tiny()).double()
    found = loss_and_backward(objective, pairs(5)).loss
    assert found.parts["divergence"].item() == pytest.approx(0.0, abs=1e-15)


def test_each_pass_has_its_own_dropout_masks():
    torch.manual_seed(0)
    found = loss_and_backward(RDrop(Tiny(dropout=0.3)).double(), pairs(5))
    assert found.loss.parts["divergence"] > 1e-4
    assert not torch.isclose(found.reps[0], found.reps[2]).all(dim=1).any()
    assert not torch.isclose(found.reps[1], found.reps[3]).all(dim=1).any()


def test_both_passes_get_a_gradient():
    objective = RDrop(Tiny(dim=4), alpha=2.0).double()
    reps = tuple(
        torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).requires_grad_()
        for seed in range(4)
    )
    objective.loss(reps, pairs(3)).parts["divergence"].backward()
    assert all(rep.grad.abs().max() > 1e-4 for rep in reps)


def test_chunks_give_the_same_gradient():
    objective = RDrop(Tiny()).double()
    loss_and_backward(objective, pairs(6))
    expected = pop_gradients(objective)
    loss_and_backward(objective, pairs(6), chunk_rows=4)
    assert_same(pop_gradients(objective), expected)
