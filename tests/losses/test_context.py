"""QuickThoughts: neighbours are found within the batch, never across documents."""

import math

import numpy as np
import pytest
import torch
from scipy.special import log_softmax

from pipeline.errors import ConfigError, DataError, Defect
from pipeline.losses.context import neighbours, quick_thoughts

F3 = torch.tensor([[1.0, 0], [0, 1], [1, 1]], dtype=torch.float64)
G3 = torch.tensor([[1.0, 1], [1, 0], [0, 2]], dtype=torch.float64)
RNG = np.random.default_rng(0)
F9, G9 = (torch.from_numpy(RNG.normal(size=(9, 4))) for _ in range(2))


def oracle(documents, context, zero=False):
    """Compute the loss row by row from its definition."""
    scores, losses = F9.numpy() @ G9.numpy().T, []
    for i, row in enumerate(scores):
        near = [j for j in range(9) if 0 < abs(i - j) <= context and documents[i] == documents[j]]
        others = [j for j in range(9) if j != i]
        logs = (
            log_softmax(np.where(np.arange(9) == i, 0, row))
            if zero
            else np.insert(log_softmax(row[others]), i, 0)
        )
        losses += [-np.mean(logs[near])] if near else []
    return np.mean(losses)


def test_three_sentences_match_a_hand_computation():
    assert quick_thoughts(F3, G3, diag="zero").item() == pytest.approx(0.955552, abs=1e-6)
    assert quick_thoughts(F3, G3).item() == pytest.approx(0.813262, abs=1e-6)


@pytest.mark.parametrize("context", [1, 2, 8])
@pytest.mark.parametrize("documents", [[0] * 9, [3, 3, 3, 1, 1, 2, 2, 2, 2], [0, 1, 1, 1, 2, 3, 3, 4, 5]])
def test_the_loss_matches_its_definition(documents, context):
    given = torch.tensor(documents)
    assert quick_thoughts(F9, G9, documents=given, context=context).item() == pytest.approx(
        oracle(documents, context), abs=1e-12
    )
    assert quick_thoughts(F9, G9, documents=given, context=context, diag="zero").item() == pytest.approx(
        oracle(documents, context, zero=True), abs=1e-12
    )


def test_neighbours_are_from_the_same_document():
    found = neighbours(5, torch.tensor([0, 0, 1, 1, 1]), 1, torch.device("cpu"))
    assert found.nonzero().tolist() == [[0, 1], [1, 0], [2, 3], [3, 2], [3, 4], [4, 3]]


def test_equal_scores_give_the_logarithm_of_the_number_of_candidates():
    ones = torch.ones(6, 3, dtype=torch.float64)
    assert quick_thoughts(ones, ones).item() == pytest.approx(math.log(5), abs=1e-12)
    zeros = torch.zeros(6, 3, dtype=torch.float64)
    assert quick_thoughts(zeros, zeros, diag="zero").item() == pytest.approx(math.log(6), abs=1e-12)


def test_the_order_of_sentences_matters():
    order = torch.tensor([4, 0, 7, 2, 8, 1, 6, 3, 5])
    assert quick_thoughts(F9[order], G9[order]).item() != pytest.approx(
        quick_thoughts(F9, G9).item(), abs=1e-3
    )


def test_neighbours_are_never_excluded():
    everything = torch.ones(9, 9, dtype=torch.bool)
    # Only the neighbours are left: one for the outer sentences, two for the others.
    expected = np.mean([np.log(1) if i in (0, 8) else _loss_of_two_neighbours(i) for i in range(9)])
    assert quick_thoughts(F9, G9, excluded=everything).item() == pytest.approx(expected, abs=1e-12)


def _loss_of_two_neighbours(i: int) -> float:
    scores = (F9[i] @ G9[[i - 1, i + 1]].T).numpy()
    return -log_softmax(scores).mean()


def test_a_sentence_gets_no_gradient_from_its_own_masked_score():
    g = G3.clone().requires_grad_()
    quick_thoughts(F3[:2], g[:2]).backward()  # the only candidate of each is its neighbour
    assert not g.grad.any()


def test_wrong_shapes_and_values_are_refused():
    with pytest.raises(ConfigError, match="at least two rows"):
        quick_thoughts(F3[:1], G3[:1])
    with pytest.raises(ConfigError, match="context"):
        quick_thoughts(F3, G3, context=0)
    with pytest.raises(DataError, match="neighbours from one document"):
        quick_thoughts(F3, G3, documents=torch.tensor([0, 1, 2]))
    with pytest.raises(Defect, match="documents of shape"):
        quick_thoughts(F3, G3, documents=torch.tensor([0, 0]))
    with pytest.raises(Defect, match="second with 3 rows"):
        quick_thoughts(F3, G3[:2])
