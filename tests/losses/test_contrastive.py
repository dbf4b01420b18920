"""InfoNCE and NT-Xent match formulas and published values, on one rank and several, with exclusions."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.special import i0, logsumexp

from pipeline.errors import ConfigError, Defect
from pipeline.losses.contrastive import cosines, info_nce, nt_xent

Z = torch.tensor([[1.0, 0], [0, 1]], dtype=torch.float64)
ZP = torch.tensor([[1.0, 1], [0, 2]], dtype=torch.float64)
ZN = torch.tensor([[-1.0, 1], [1, 2]], dtype=torch.float64)


def random(rows: int, dim: int = 5, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng([seed, rows]).normal(size=(rows, dim)))


def numpy_cosines(left: torch.Tensor, right: torch.Tensor) -> np.ndarray:
    a, b = left.numpy(), right.numpy()
    return (a @ b.T) / np.linalg.norm(a, axis=1)[:, None] / np.linalg.norm(b, axis=1)


@pytest.mark.parametrize(
    ("temperature", "rows", "columns"),
    [(1.0, 0.479110, 0.503204), (0.5, 0.330085, 0.410038), (0.05, 0.001427, 0.346574)],
)
def test_info_nce_of_two_pairs_matches_a_hand_computation(temperature, rows, columns):
    assert info_nce(Z, ZP, temperature=temperature).item() == pytest.approx(rows, abs=1e-6)
    assert info_nce(ZP, Z, temperature=temperature).item() == pytest.approx(columns, abs=1e-6)


@pytest.mark.parametrize(("weight", "rows"), [(1.0, (0.640205, 1.072608)), (2.0, (0.670889, 1.317118))])
def test_the_hard_negative_weight_applies_to_a_querys_own_hard_negative_alone(weight, rows):
    loss = info_nce(Z, ZP, temperature=0.5, negatives=ZN, hard_negative_weight=weight)
    assert loss.item() == pytest.approx(sum(rows) / 2, abs=1e-6)
    single = [
        info_nce(
            Z[i : i + 1], ZP, temperature=0.5, negatives=ZN, hard_negative_weight=weight, offset=i
        ).item()
        for i in range(2)
    ]
    assert single == pytest.approx(rows, abs=1e-6)


def test_info_nce_matches_its_formula_with_weighted_negatives_and_exclusions():
    q, k, n = random(6), random(9, seed=1), random(7, seed=2)
    excluded = torch.from_numpy(np.random.default_rng(3).random((6, 16)) < 0.3)
    logits = np.concatenate([numpy_cosines(q, k), numpy_cosines(q, n)], axis=1) / 0.1
    logits[np.arange(6), 9 + np.arange(6)] += np.log(0.25)
    kept = ~excluded.numpy()
    kept[np.arange(6), np.arange(6)] = True
    expected = np.mean(
        [logsumexp(row[keep]) - row[i] for i, (row, keep) in enumerate(zip(logits, kept, strict=True))]
    )
    assert info_nce(
        q, k, temperature=0.1, negatives=n, hard_negative_weight=0.25, excluded=excluded
    ).item() == pytest.approx(expected, abs=1e-12)


def test_surplus_keys_are_extra_negatives():
    q, k, extra = random(4), random(4, seed=1), random(4, seed=2)
    assert info_nce(q, torch.cat([k, extra]), temperature=0.1).item() == pytest.approx(
        info_nce(q, k, temperature=0.1, negatives=extra).item(), abs=1e-12
    )


@pytest.mark.parametrize("temperature", [0.05, 0.5, 1.0])
@pytest.mark.parametrize("rows", [2, 7, 64])
def test_orthogonal_pairs_and_equal_rows_have_closed_forms(rows, temperature):
    eye, same = torch.eye(rows, dtype=torch.float64), torch.ones(rows, 3, dtype=torch.float64)
    assert info_nce(eye, eye, temperature=temperature).item() == pytest.approx(
        math.log1p((rows - 1) * math.exp(-1 / temperature)), abs=1e-12
    )
    assert info_nce(same, same, temperature=temperature).item() == pytest.approx(math.log(rows), abs=1e-12)
    assert nt_xent(eye, eye, temperature=temperature).item() == pytest.approx(
        2 * math.log1p(2 * (rows - 1) * math.exp(-1 / temperature)), abs=1e-12
    )
    assert nt_xent(same, same, temperature=temperature).item() == pytest.approx(
        2 * math.log(2 * rows - 1), abs=1e-12
    )


@pytest.mark.parametrize("temperature", [0.2, 1.0])
def test_with_many_keys_the_loss_is_alignment_plus_uniformity(temperature):
    """Wang & Isola 2020, theorem 1: on a circle, E exp(cos / tau) is the Bessel function I0(1 / tau)."""
    angles = torch.arange(200, dtype=torch.float64) * (2 * math.pi / 200)
    circle = torch.stack([angles.cos(), angles.sin()], dim=1)
    expected = math.log(200) - 1 / temperature + math.log(i0(1 / temperature))
    assert info_nce(circle, circle, temperature=temperature).item() == pytest.approx(expected, abs=1e-9)


def test_very_low_temperatures_give_finite_losses_and_gradients():
    q, k = random(8).float().requires_grad_(), random(8, seed=1).float()
    loss = info_nce(q, k, temperature=0.001)
    loss.backward()
    logits = numpy_cosines(q.detach().double(), k.double()) / 0.001
    assert loss.item() == pytest.approx(np.mean(logsumexp(logits, axis=1) - np.diag(logits)), rel=1e-5)
    assert torch.isfinite(q.grad).all()


def test_losses_of_ranks_average_to_the_loss_of_the_whole_batch():
    weight = torch.tensor([[1, 0.2], [-0.3, 0.8]], dtype=torch.float64, requires_grad=True)
    x = torch.tensor([[1, 0], [0.5, 1], [-1, 0.5], [0.2, -1]], dtype=torch.float64)
    y = torch.tensor([[1, 0.1], [0.4, 1.2], [-0.8, 0.6], [0, -1]], dtype=torch.float64)
    queries, keys = x @ weight, y @ weight
    ranks = [info_nce(queries[i : i + 2], keys, temperature=0.5, offset=i) for i in (0, 2)]
    assert [loss.item() for loss in ranks] == pytest.approx([0.401016, 0.249846], abs=1e-6)
    (sum(ranks) / 2).backward(retain_graph=True)
    np.testing.assert_allclose(weight.grad, [[0.028625, -0.055471], [-0.059860, -0.044361]], atol=1e-6)
    whole = info_nce(queries, keys, temperature=0.5)
    assert whole.item() == pytest.approx(0.325431, abs=1e-6)
    np.testing.assert_allclose(torch.autograd.grad(whole, weight)[0], weight.grad, atol=1e-12)


def test_hard_negatives_and_exclusions_can_be_split_over_ranks():
    q, k, n = random(6), random(6, seed=1), random(6, seed=2)
    excluded = torch.from_numpy(np.random.default_rng(3).random((6, 12)) < 0.3)
    options = {"temperature": 0.1, "negatives": n, "hard_negative_weight": 2.0}
    parts = [info_nce(q[i : i + 2], k, excluded=excluded[i : i + 2], offset=i, **options) for i in (0, 2, 4)]
    assert sum(parts).item() / 3 == pytest.approx(
        info_nce(q, k, excluded=excluded, **options).item(), abs=1e-12
    )


def test_a_repeated_text_is_not_its_own_negative():
    q, k = random(4), random(4, seed=1)
    ids = torch.tensor([7, 8, 7, 9])
    equal = ids[:, None] == ids
    loss = info_nce(q, k, temperature=0.1, excluded=equal)
    logits = numpy_cosines(q, k) / 0.1
    candidates = [[0, 1, 3], [0, 1, 2, 3], [1, 2, 3], [0, 1, 2, 3]]
    assert loss.item() == pytest.approx(
        np.mean([logsumexp(logits[i, c]) - logits[i, i] for i, c in enumerate(candidates)]), abs=1e-12
    )


def test_without_negatives_loss_and_gradient_are_zero():
    q, k = random(1).requires_grad_(), random(3, seed=1).requires_grad_()
    loss = info_nce(q, k, temperature=0.05, excluded=torch.ones(1, 3, dtype=torch.bool))
    loss.backward()
    assert loss.item() == 0
    assert not q.grad.any()
    assert not k.grad.any()


def test_excluded_candidates_get_no_gradient():
    q, k = random(3), random(5, seed=1).requires_grad_()
    excluded = torch.zeros(3, 5, dtype=torch.bool)
    excluded[:, 4] = True
    info_nce(q, k, temperature=0.1, excluded=excluded).backward()
    assert not k.grad[4].any()
    assert k.grad[:4].any(dim=1).all()


def test_nt_xent_of_two_pairs_matches_a_hand_computation():
    assert nt_xent(Z, ZP, temperature=0.5).item() == pytest.approx(1.273342, abs=1e-6)


def test_nt_xent_matches_its_formula():
    a, b, ids = random(5), random(5, seed=1), np.array([1, 2, 1, 3, 4])
    views, expected = torch.cat([a, b]), 0.0
    logits = numpy_cosines(views, views) / 0.1
    for i in range(10):
        own = (i + 5) % 10
        candidates = [j for j in range(10) if j == own or ids[j % 5] != ids[i % 5]]
        expected += (logsumexp(logits[i, candidates]) - logits[i, own]) / 5
    equal = torch.from_numpy(ids[:, None] == ids)
    assert nt_xent(a, b, temperature=0.1, excluded=equal).item() == pytest.approx(expected, abs=1e-12)
    assert nt_xent(a, b, temperature=0.1).item() > expected  # with more candidates


def test_a_cosine_with_a_zero_vector_is_zero():
    assert cosines(torch.zeros(1, 4), torch.ones(2, 4)).tolist() == [[0, 0]]
    assert torch.allclose(cosines(Z, ZP), torch.tensor([[0.5**0.5, 0], [0.5**0.5, 1]], dtype=torch.float64))


def test_dropout_of_one_text_is_below_the_logarithm_of_the_batch():
    x = random(64, 32)
    views = [F.dropout(x, 0.1, training=True) for _ in range(2)]
    assert info_nce(*views, temperature=0.05).item() < math.log(64)


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("loss", [info_nce, nt_xent])
def test_temperatures_must_be_finite_and_above_zero(loss, temperature):
    with pytest.raises(ConfigError, match="temperature: expected a finite number above 0"):
        loss(Z, ZP, temperature=temperature)


@pytest.mark.parametrize("weight", [0.0, -2.0, float("nan")])
def test_hard_negative_weights_must_be_above_zero(weight):
    with pytest.raises(ConfigError, match="hard_negative_weight"):
        info_nce(Z, ZP, temperature=1, negatives=ZN, hard_negative_weight=weight)


def test_a_single_candidate_is_refused():
    for loss in (info_nce, nt_xent):
        with pytest.raises(ConfigError, match="at least two rows"):
            loss(Z[:1], ZP[:1], temperature=0.05)
    assert info_nce(Z[:1], ZP[:1], temperature=0.05, negatives=ZN[:1]).item() > 0  # one negative is enough


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((random(3), random(2)), "expected 3 keys, starting at row 0, found 2 keys"),
        ((random(3), random(3, 4)), "expected right of shape"),
        ((random(3), random(3)[0]), "expected right of shape"),
        ((random(3), random(3), random(2)), "found 2 negatives"),
        ((random(3)[:0], random(3)), "at least one row"),
    ],
)
def test_wrong_numbers_of_rows_are_refused(arguments, message):
    with pytest.raises(Defect, match=message):
        info_nce(*arguments[:2], temperature=1, negatives=arguments[2] if len(arguments) > 2 else None)


def test_wrong_offsets_and_masks_are_refused():
    q, k = random(2), random(4, seed=1)
    for offset in (-1, 3):
        with pytest.raises(Defect, match=f"2 keys, starting at row {offset}"):
            info_nce(q, k, temperature=1, offset=offset)
    with pytest.raises(Defect, match="excluded of shape"):
        info_nce(q, k, temperature=1, excluded=torch.zeros(2, 2, dtype=torch.bool))
    with pytest.raises(Defect, match="excluded of shape"):
        nt_xent(k, k, temperature=1, excluded=torch.zeros(8, 8, dtype=torch.bool))
    with pytest.raises(Defect, match="second with 2 rows"):
        nt_xent(q, k, temperature=1)
