"""Contrastive tension: two encoders learn whether they read the same text."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from pipeline.objectives.contrastive_tension import ContrastiveTension
from pipeline.train.gradcache import loss_and_backward
from tests.objectives.tiny import Tiny, batch_of, gradients, texts

THREE = batch_of({"text": texts(3)})


def test_a_positive_and_two_negatives_match_a_hand_computation():
    first = torch.tensor([[2.0, 0], [0, 1], [0, 1]]).double()
    # Row 1 is paired with the text of row 2, and row 2 with that of row 1.
    second = torch.tensor([[1.0, 0], [0, 0.5], [0, -1]]).double()
    loss = ContrastiveTension(Tiny(dim=2)).loss((first, second), THREE).total.item()
    assert loss == pytest.approx(0.471422, abs=1e-6)  # of the inner products 2, -1 and 0.5
    assert ContrastiveTension(Tiny(dim=2), reduction="sum").loss(
        (first, second), THREE
    ).total.item() == pytest.approx(1.414267, abs=1e-6)


@pytest.mark.parametrize(("negatives", "rows"), [(7, 16), (7, 20), (1, 6), (7, 3)])
def test_every_run_starts_with_a_positive_and_each_row_is_a_partner_once(negatives: int, rows: int):
    partners = ContrastiveTension(Tiny(), negatives=negatives).partners(rows).numpy()
    assert np.array_equal(np.flatnonzero(partners == np.arange(rows)), np.arange(0, rows, 1 + negatives))
    assert sorted(partners) == list(range(rows))


def test_pairs_of_known_equal_texts_are_positives():
    objective = ContrastiveTension(Tiny()).double()
    reps = tuple(view.encode() for view in objective.views(THREE))
    alike = np.zeros((3, 3), bool)
    alike[1, 2] = alike[2, 1] = True
    products = (reps[0] * reps[1][[0, 2, 1]]).sum(1).detach().numpy()
    expected = np.log1p(np.exp(-products)).mean()
    assert objective.loss(
        reps, replace(THREE, false_negatives={"text": alike})
    ).total.item() == pytest.approx(expected, abs=1e-12)


def test_both_encoders_start_equal_and_diverge_in_training():
    objective, batch = ContrastiveTension(Tiny()).double(), batch_of({"text": texts(8)})
    before = loss_and_backward(objective, batch).reps
    assert torch.equal(*before)
    for parameter in objective.parameters():
        parameter.data -= 0.01 * parameter.grad
    gradients(objective)
    first, second = loss_and_backward(objective, batch).reps
    assert (first - second).abs().max() > 1e-4


def test_the_product_is_the_second_encoder_by_default():
    objective = ContrastiveTension(Tiny())
    assert objective.trained_model().encoder is objective.twin
    first = ContrastiveTension(Tiny(), inference="first")
    assert first.trained_model().encoder is first.encoder
    assert len(first.candidates()) == len(objective.candidates()) == 1


def test_the_selected_candidate_is_the_product_and_part_of_the_state():
    objective, other = (
        ContrastiveTension(Tiny(), inference="best"),
        ContrastiveTension(Tiny(), inference="best"),
    )
    assert objective.trained_model().encoder is objective.twin
    assert [candidate.encoder for candidate in objective.candidates()] == [objective.twin, objective.encoder]
    objective.select(1)
    other.load_state_dict(objective.state_dict())
    assert other.trained_model().encoder is other.encoder
    objective.select(0)
    assert objective.trained_model().encoder is objective.twin
