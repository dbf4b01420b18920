"""Ranking of responses: inner products of inputs with the transformed responses of the batch."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from pipeline.objectives.input_response import InputResponse
from tests.objectives.tiny import Tiny, batch_of

BATCH = batch_of({"anchor": ["a", "b"], "positive": ["c", "d"]})
INPUTS, RESPONSES = torch.tensor([[1.0, 0], [0, 2]]).double(), torch.tensor([[0.0, 1], [1, 1]]).double()


def test_the_loss_of_two_pairs_matches_a_hand_computation():
    """g(v) = tanh(A v + b), the scores are u . g(v), and each input's own response is the target."""
    objective = InputResponse(Tiny(dim=2)).double()
    matrix, bias = np.array([[1.0, -1], [0.5, 2]]), np.array([0.1, -0.2])
    objective.response.linear.load_state_dict(
        {"weight": torch.from_numpy(matrix), "bias": torch.from_numpy(bias)}
    )
    scores = INPUTS.numpy() @ np.tanh(RESPONSES.numpy() @ matrix.T + bias).T
    expected = np.mean(np.log(np.exp(scores).sum(1)) - np.diag(scores))
    found = objective.loss((INPUTS, RESPONSES), BATCH)
    assert found.total.item() == pytest.approx(expected, abs=1e-12)
    assert list(found.parts) == ["info_nce"]


def test_equal_responses_are_not_negatives_if_repeats_are_masked():
    objective = InputResponse(Tiny(dim=2)).double()
    masked = replace(BATCH, false_negatives={"anchor": ~np.eye(2, dtype=bool)})
    assert objective.loss((INPUTS, RESPONSES), masked).total.item() == pytest.approx(0.0, abs=1e-12)


def test_hard_negatives_that_another_objective_reads_are_no_candidates():
    objective = InputResponse(Tiny(dim=2)).double()
    masks = np.concatenate([~np.eye(2, dtype=bool), np.ones((2, 2), bool)], axis=1)
    masked = replace(BATCH, false_negatives={"anchor": masks})
    assert objective.loss((INPUTS, RESPONSES), masked).total.item() == pytest.approx(0.0, abs=1e-12)


def test_the_layer_over_responses_is_left_out_of_the_trained_model():
    assert InputResponse(Tiny(dim=2)).trained_model().head is None


def test_the_layer_over_responses_excludes_truncated_vectors():
    assert not InputResponse(Tiny(dim=2)).allows_truncation
