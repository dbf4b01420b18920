"""Correlations match scipy; constant samples have none."""

import numpy as np
import pytest
from scipy import stats

from pipeline.stats.correlation import is_constant, pearson, spearman


def test_spearman_uses_average_ranks_for_ties():
    gold, predicted = np.array([0, 1, 1, 3, 5.0]), np.array([0.1, 0.4, 0.2, 0.2, 0.9])
    assert spearman(gold, predicted) == pytest.approx(
        0.763158, abs=1e-6
    )  # the form without ties would say 0.775
    assert pearson(gold, predicted) == pytest.approx(0.817920, abs=1e-6)


def test_both_match_scipy_with_and_without_ties():
    rng = np.random.default_rng(0)
    for values in (rng.normal(size=200), rng.integers(0, 5, 200).astype(float), 1e6 + rng.normal(size=200)):
        other = values + rng.normal(size=200)
        assert spearman(values, other) == pytest.approx(stats.spearmanr(values, other).statistic, abs=1e-12)
        assert pearson(values, other) == pytest.approx(stats.pearsonr(values, other).statistic, abs=1e-9)


def test_a_constant_sample_has_no_correlation():
    varied = np.arange(4.0)
    for same in (np.full(4, 0.3), np.array([1, 1 + 1e-16, 1, 1 - 1e-16]), np.zeros(4)):
        assert is_constant(same)
        assert np.isnan(spearman(same, varied))
        assert np.isnan(pearson(varied, same))
    assert is_constant(np.array([2.0]))
    assert not is_constant(np.array([0.5, 0.5 + 1e-9]))
