"""Contrastive tension: two encoders learn whether they read the same text."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from pipeline.errors import ConfigError
from pipeline.objectives.contrastive_tension import ContrastiveTension
from pipeline.train.gradcache import loss_and_backward
from tests.objectives.tiny import Tiny, batch_of, descend, texts

THREE = batch_of({"text": texts(3)})


@pytest.mark.parametrize(("reduction", "loss"), [("mean", 0.471422), ("sum", 1.414267)])
def test_the_loss_of_a_positive_and_two_negatives_matches_a_hand_computation(reduction: str, loss: float):
    """Row 1 is paired with the text of row 2, and row 2 with that of row 1: products of 2, -1 and 0.5."""
    first = torch.tensor([[2.0, 0], [0, 1], [0, 1]]).double()
    second = torch.tensor([[1.0, 0], [0, 0.5], [0, -1]]).double()
    objective = ContrastiveTension(Tiny(dim=2), reduction=reduction)
    assert objective.loss((first, second), THREE).total.item() == pytest.approx(loss, abs=1e-6)


@pytest.mark.parametrize(("negatives", "rows"), [(7, 16), (7, 20), (1, 6), (7, 3)])
def test_a_positive_precedes_its_negatives_and_each_row_is_a_partner_once(negatives: int, rows: int):
    partners = ContrastiveTension(Tiny(), negatives=negatives).partners(rows).numpy()
    assert np.array_equal(np.flatnonzero(partners == np.arange(rows)), np.arange(0, rows, 1 + negatives))
    assert sorted(partners) == list(range(rows))


@pytest.mark.parametrize(("negatives", "rows"), [(1, 3), (1, 4), (2, 3), (2, 4), (7, 2), (7, 3), (7, 9)])
def test_a_batch_without_a_pair_of_different_rows_is_refused(negatives: int, rows: int):
    partners = ContrastiveTension(Tiny(), negatives=negatives).partners(rows).numpy()
    options = {"negatives": negatives}
    if (partners == np.arange(rows)).all():
        with pytest.raises(ConfigError, match=f"two negatives in a batch.*found {negatives} .* {rows} rows"):
            ContrastiveTension.check_batch(options, rows, all_ranks=True)
    else:
        ContrastiveTension.check_batch(options, rows, all_ranks=True)


def test_pairs_of_texts_known_to_be_equal_are_positives():
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
    descend(objective, rate=0.01)
    first, second = loss_and_backward(objective, batch).reps
    assert (first - second).abs().max() > 1e-4


def test_the_trained_model_is_the_second_encoder_by_default():
    by_default, first = ContrastiveTension(Tiny()), ContrastiveTension(Tiny(), inference="first")
    assert by_default.trained_model().encoder is by_default.twin
    assert first.trained_model().encoder is first.encoder
    assert [model.encoder for model in by_default.candidates()] == [by_default.twin]
    assert [model.encoder for model in first.candidates()] == [first.encoder]


def test_the_selected_candidate_is_the_trained_model_and_part_of_the_state():
    objective, other = (ContrastiveTension(Tiny(), inference="best") for _ in range(2))
    assert objective.trained_model().encoder is objective.twin
    assert [candidate.encoder for candidate in objective.candidates()] == [objective.twin, objective.encoder]
    objective.select(1)
    other.load_state_dict(objective.state_dict())
    assert other.trained_model().encoder is other.encoder
    objective.select(0)
    assert objective.trained_model().encoder is objective.twin
