"""Losses of single rows match their formulas and hand computations."""

import numpy as np
import pytest
import torch
from scipy.special import expit

from pipeline.errors import ConfigError, DataError, Defect
from pipeline.losses.pairs import contrastive_tension, cosine_regression, row_cosines, triplet

RNG = np.random.default_rng(0)
U, V, T = (torch.from_numpy(RNG.normal(size=(6, 4))) for _ in range(3))


def double(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def test_the_cosine_of_one_pair_matches_a_hand_computation():
    u, v = double([1, 2]), double([3, -1])
    assert row_cosines(u, v).item() == pytest.approx(0.141421, abs=1e-6)
    assert cosine_regression(u, v, torch.tensor([0.6], dtype=torch.float64)).item() == pytest.approx(
        0.210294, abs=1e-6
    )


def test_regression_is_the_mean_squared_error_of_cosines():
    scores = RNG.random(6)
    cosine = (U * V).numpy().sum(axis=1) / np.linalg.norm(U, axis=1) / np.linalg.norm(V, axis=1)
    assert cosine_regression(U, V, torch.from_numpy(scores)).item() == pytest.approx(
        np.mean((cosine - scores) ** 2), abs=1e-12
    )


def test_a_zero_vector_has_cosine_zero_and_a_finite_gradient():
    u = torch.zeros(1, 4, requires_grad=True)
    loss = cosine_regression(u, torch.ones(1, 4), torch.zeros(1))
    loss.backward()
    assert loss.item() == 0
    assert torch.isfinite(u.grad).all()


@pytest.mark.parametrize("score", [5.0, -1.5, float("nan")])
def test_scores_outside_minus_one_to_one_are_refused(score):
    with pytest.raises(DataError, match=f"found {score:g}; divide them by the maximum"):
        cosine_regression(U, V, torch.tensor([0.0, 1, score, 0, 0, 0]))


def test_one_triplet_matches_a_hand_computation():
    assert triplet(double([0, 0]), double([3, 4]), double([0, 4.5])).item() == 1.5


def test_triplet_loss_matches_its_formula_and_is_zero_beyond_the_margin():
    distance = [np.linalg.norm((U - other).numpy(), axis=1) for other in (V, T)]
    for margin in (0.1, 1.0, 3.0):
        assert triplet(U, V, T, margin=margin).item() == pytest.approx(
            np.maximum(distance[0] - distance[1] + margin, 0).mean(), abs=1e-12
        )
    far = U.clone().requires_grad_()
    loss = triplet(far, U, U + 10)
    loss.backward()
    assert loss.item() == 0
    assert not far.grad.any()


def test_equal_anchor_and_positive_give_a_finite_gradient():
    u = U.clone().requires_grad_()
    triplet(u, U, T, margin=20.0).backward()
    assert torch.isfinite(u.grad).all()


def test_three_inner_products_match_a_hand_computation():
    first, second = double([2, 0], [1, 0], [0, 1]), double([1, 5], [-1, 3], [7, 0.5])
    equal = torch.tensor([True, False, False])
    rows = [
        contrastive_tension(first[i : i + 1], second[i : i + 1], equal[i : i + 1]).item() for i in range(3)
    ]
    assert rows == pytest.approx([0.126928, 0.313262, 0.974077], abs=1e-6)
    assert contrastive_tension(first, second, equal, reduction="sum").item() == pytest.approx(
        1.414267, abs=1e-6
    )
    assert contrastive_tension(first, second, equal).item() == pytest.approx(0.471422, abs=1e-6)


def test_contrastive_tension_is_binary_cross_entropy_of_inner_products():
    equal = np.array([1, 0, 0, 1, 0, 0])
    p = expit((U * V).numpy().sum(axis=1))
    expected = -np.mean(equal * np.log(p) + (1 - equal) * np.log(1 - p))
    assert contrastive_tension(U, V, torch.from_numpy(equal)).item() == pytest.approx(expected, abs=1e-12)


def test_large_inner_products_give_finite_losses_and_gradients():
    """Expect the inner product itself, because log(1 + e^x) is about x for large x."""
    u = torch.full((2, 100), 3.0, requires_grad=True)
    loss = contrastive_tension(u, torch.full((2, 100), 2.0), torch.tensor([0, 1]))
    loss.backward()
    assert loss.item() == pytest.approx(300)
    assert torch.isfinite(u.grad).all()


def test_wrong_shapes_and_values_are_refused():
    for loss in (
        lambda: triplet(U, V[:5], T),
        lambda: contrastive_tension(U, V[:5], torch.zeros(6)),
        lambda: row_cosines(U, V[:5]),
    ):
        with pytest.raises(Defect, match="6 rows"):
            loss()
    with pytest.raises(Defect, match=r"scores of shape \(6,\)"):
        cosine_regression(U, V, torch.zeros(6, 1))
    with pytest.raises(Defect, match=r"labels of shape \(6,\)"):
        contrastive_tension(U, V, torch.zeros(5))
    with pytest.raises(DataError, match="0 or 1, found 2"):
        contrastive_tension(U[:2], V[:2], torch.tensor([2, 1]))
    with pytest.raises(ConfigError, match="margin"):
        triplet(U, V, T, margin=0)
