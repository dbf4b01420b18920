"""Two encoders tell equal texts from others."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from pipeline.objectives.contrastive_tension import ContrastiveTension
from pipeline.train.gradcache import loss_and_backward
from tests.objectives.tiny import Tiny, batch_of, gradients, texts

THREE = batch_of({"text": texts(3)})


def test_known_loss_of_a_positive_and_two_negatives():
    first = torch.tensor([[2.0, 0], [0, 1], [0, 1]]).double()
    second = torch.tensor(
        [[1.0, 0], [0, 0.5], [0, -1]]
    ).double()  # row 1 meets the text of row 2, row 2 that of row 1
    loss = ContrastiveTension(Tiny(dim=2)).loss((first, second), THREE).total.item()
    assert loss == pytest.approx(0.471422, abs=1e-6)  # of the inner products 2, -1 and 0.5
    assert ContrastiveTension(Tiny(dim=2), reduction="sum").loss(
        (first, second), THREE
    ).total.item() == pytest.approx(1.414267, abs=1e-6)


@pytest.mark.parametrize(("negatives", "rows"), [(7, 16), (7, 20), (1, 6), (7, 3)])
def test_of_each_run_the_first_row_is_the_positive_and_no_anchor_or_partner_comes_twice(
    negatives: int, rows: int
):
    partners = ContrastiveTension(Tiny(), negatives=negatives).partners(rows).numpy()
    assert np.array_equal(np.flatnonzero(partners == np.arange(rows)), np.arange(0, rows, 1 + negatives))
    assert sorted(partners) == list(range(rows))


def test_a_pair_of_rows_with_one_text_is_a_positive_where_it_is_told():
    objective = ContrastiveTension(Tiny()).double()
    reps = tuple(view.encode() for view in objective.views(THREE))
    alike = np.zeros((3, 3), bool)
    alike[1, 2] = alike[2, 1] = True
    products = (reps[0] * reps[1][[0, 2, 1]]).sum(1).detach().numpy()
    expected = np.log1p(np.exp(-products)).mean()
    assert objective.loss(
        reps, replace(THREE, false_negatives={"text": alike})
    ).total.item() == pytest.approx(expected, abs=1e-12)


def test_both_encoders_begin_alike_are_trained_and_part():
    objective, batch = ContrastiveTension(Tiny()).double(), batch_of({"text": texts(8)})
    before = loss_and_backward(objective, batch).reps
    assert torch.equal(*before)
    for parameter in objective.parameters():
        parameter.data -= 0.01 * parameter.grad
    gradients(objective)
    first, second = loss_and_backward(objective, batch).reps
    assert (first - second).abs().max() > 1e-4


def test_the_product_is_the_second_encoder_unless_the_first_is_wanted():
    objective = ContrastiveTension(Tiny())
    assert objective.product().encoder is objective.twin
    first = ContrastiveTension(Tiny(), inference="first")
    assert first.product().encoder is first.encoder
    assert len(first.rivals()) == len(objective.rivals()) == 1


def test_the_better_one_may_be_the_product_and_the_choice_is_in_the_state():
    objective, other = (
        ContrastiveTension(Tiny(), inference="best"),
        ContrastiveTension(Tiny(), inference="best"),
    )
    assert objective.product().encoder is objective.twin
    assert [rival.encoder for rival in objective.rivals()] == [objective.twin, objective.encoder]
    objective.choose(1)
    other.load_state_dict(objective.state_dict())
    assert other.product().encoder is other.encoder
    objective.choose(0)
    assert objective.product().encoder is objective.twin
