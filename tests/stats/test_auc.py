"""The area under the ROC curve is that of scikit-learn, and its interval contains the true area."""

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from pipeline.stats.auc import area_under_curve


@pytest.mark.parametrize("digits", [0, 1, 9])
def test_the_area_is_the_one_of_scikit_learn_with_ties(digits: int):
    rng = np.random.default_rng(digits)
    positives, negatives = rng.normal(0.7, 1, 40).round(digits), rng.normal(0, 1, 70).round(digits)
    labels = np.r_[np.ones(40), np.zeros(70)]
    expected = roc_auc_score(labels, np.r_[positives, negatives])
    assert area_under_curve(positives, negatives).value == pytest.approx(expected, abs=1e-12)


def test_the_variance_is_delong_s_by_its_definition():
    """Placements of each row, compared pair by pair, on a few rows."""
    rng = np.random.default_rng(1)
    x, y = rng.normal(0.5, 1, 12).round(1), rng.normal(0, 1, 9).round(1)
    psi = (x[:, None] > y) + 0.5 * (x[:, None] == y)
    value, variance = psi.mean(), psi.mean(1).var(ddof=1) / 12 + psi.mean(0).var(ddof=1) / 9
    half = norm.ppf(0.975) * np.sqrt(variance) / (value * (1 - value))
    ends = 1 / (1 + np.exp(-(np.log(value / (1 - value)) + np.array([-half, half]))))
    found = area_under_curve(x, y)
    np.testing.assert_allclose([found.low, found.high], ends, rtol=1e-12)


@pytest.mark.parametrize("shift", [0.0, 0.5, 1.5])
def test_the_interval_contains_the_true_area_at_the_promised_rate(shift: float):
    """2,000 pairs of normal samples; the rate's standard error is 0.5 %."""
    rng, truth = np.random.default_rng(2), norm.cdf(shift / np.sqrt(2))
    hits = 0
    for _ in range(2_000):
        found = area_under_curve(rng.normal(shift, 1, 60), rng.normal(0, 1, 90))
        hits += found.low <= truth <= found.high
    assert 0.935 < hits / 2_000 < 0.97


def test_separated_samples_have_an_interval_that_reaches_the_end():
    found = area_under_curve(np.arange(10.0, 40.0), np.arange(0.0, 10.0))
    assert (found.value, found.high) == (1.0, 1.0)
    assert found.low == pytest.approx(0.025 ** (1 / 10))
    below = area_under_curve(np.arange(0.0, 10.0), np.arange(10.0, 40.0))
    assert (below.value, below.low, below.high) == (0.0, 0.0, pytest.approx(1 - 0.025 ** (1 / 10)))
    equal = area_under_curve(np.ones(5), np.ones(6))
    assert equal.low <= 0.5 <= equal.high
