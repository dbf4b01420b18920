"""R-Drop and PSER: divergences match scipy and hand computations."""

import numpy as np
import pytest
import torch
from scipy.special import softmax
from scipy.stats import entropy

from pipeline.errors import ConfigError, Defect
from pipeline.losses.divergence import pser, symmetric_divergence

P, Q = (torch.tensor([row], dtype=torch.float64).log() for row in ([0.7, 0.2, 0.1], [0.5, 0.3, 0.2]))
RNG = np.random.default_rng(0)
A, B = (torch.from_numpy(RNG.normal(size=(6, 4))) for _ in range(2))


def expected(first: np.ndarray, second: np.ndarray) -> float:
    p, q = softmax(first, axis=1), softmax(second, axis=1)
    return float(np.mean([(entropy(x, y) + entropy(y, x)) / 2 for x, y in zip(p, q, strict=True)]))


def test_two_distributions_match_a_hand_computation():
    assert symmetric_divergence(P, Q).item() == pytest.approx((0.085123 + 0.092033) / 2, abs=1e-6)


def test_both_readings_of_pser_match_a_hand_computation():
    first = torch.tensor([[0.2, -0.4, 1]], dtype=torch.float64)
    second = torch.tensor([[0, 0.1, 0.8]], dtype=torch.float64)
    assert pser(first, second, temperature=0.05).item() == pytest.approx(0.038426, abs=1e-6)
    z, other = torch.eye(2, dtype=torch.float64), torch.tensor([[1.0, 1], [0, 2]], dtype=torch.float64)
    assert pser(z, other, temperature=0.5, kl_on="similarity").item() == pytest.approx(0.191919, abs=1e-6)


def test_divergences_match_scipy():
    assert symmetric_divergence(A, B).item() == pytest.approx(expected(A.numpy(), B.numpy()), abs=1e-12)
    assert pser(A, B, temperature=0.1).item() == pytest.approx(expected(A.numpy(), B.numpy()), abs=1e-12)
    unit = [(each / each.norm(dim=1, keepdim=True)).numpy() for each in (A, B)]
    logits = unit[0] @ unit[1].T / 0.1
    assert pser(A, B, temperature=0.1, kl_on="similarity").item() == pytest.approx(
        expected(logits, logits.T), abs=1e-12
    )


def test_a_divergence_is_symmetric_and_zero_for_equal_distributions():
    assert symmetric_divergence(A, B).item() == pytest.approx(symmetric_divergence(B, A).item(), abs=1e-15)
    assert symmetric_divergence(A, A + 3).item() == pytest.approx(
        0, abs=1e-15
    )  # a constant offset of logits does not matter
    assert symmetric_divergence(A, B).item() > 0


def test_gradients_flow_through_both_arguments():
    for term in (
        lambda a, b: symmetric_divergence(a, b),
        lambda a, b: pser(a, b, temperature=0.1, kl_on="similarity"),
    ):
        a, b = A.clone().requires_grad_(), B.clone().requires_grad_()
        term(a, b).backward()
        assert a.grad.any()
        assert b.grad.any()


def test_very_different_distributions_give_finite_losses_and_gradients():
    a = torch.tensor([[500.0, -500]], requires_grad=True)
    loss = symmetric_divergence(a, -a.detach())
    loss.backward()
    assert loss.item() == pytest.approx(1000)
    assert torch.isfinite(a.grad).all()


def test_wrong_shapes_and_values_are_refused():
    with pytest.raises(ConfigError, match="temperature"):
        pser(A, B, temperature=-1, kl_on="similarity")
    with pytest.raises(ConfigError, match="at least two rows"):
        pser(A[:1], B[:1], temperature=1, kl_on="similarity")
    for kl_on in ("embedding", "similarity"):
        with pytest.raises(Defect, match="second of shape"):
            pser(A, B[:5], temperature=1, kl_on=kl_on)
    with pytest.raises(Defect, match="at least one row"):
        symmetric_divergence(A[:0], B[:0])
