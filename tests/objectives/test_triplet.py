"""Triplet loss: closer to the positive than to the negative, by a margin."""

import pytest
import torch

from pipeline.objectives import Batch
from pipeline.objectives.triplet import Triplet
from pipeline.train.gradcache import loss_and_backward
from tests.objectives.tiny import Tiny, batch_of, texts


def triples(rows: int) -> Batch:
    return batch_of({role: texts(rows, seed) for seed, role in enumerate(("anchor", "positive", "negative"))})


@pytest.mark.parametrize(("margin", "loss"), [(1.0, 1.5), (0.25, 0.75)])
def test_the_loss_of_one_triple_matches_a_hand_computation(margin: float, loss: float):
    reps = tuple(torch.tensor([row]).double() for row in ([0.0, 0.0], [3.0, 4.0], [0.0, 4.5]))
    assert Triplet(Tiny(dim=2), margin=margin).loss(reps, triples(1)).total.item() == pytest.approx(
        loss, abs=1e-6
    )


def test_beyond_the_margin_loss_and_gradient_are_zero():
    objective = Triplet(Tiny(), margin=1e-3).double()
    batch = batch_of({"anchor": ["ab", "cd"], "positive": ["ab", "cd"], "negative": ["xyz", "uvw"]})
    assert loss_and_backward(objective, batch).loss.total.item() == 0
    assert all(
        parameter.grad is None or parameter.grad.abs().max() == 0 for parameter in objective.parameters()
    )
