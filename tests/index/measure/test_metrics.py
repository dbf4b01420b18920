"""Intervals of proportions are Wilson's score intervals."""

import pytest
from scipy.stats import binomtest

from pipeline.index.measure.metrics import Proportion


@pytest.mark.parametrize(("hits", "trials"), [(0, 10), (3, 10), (10, 10), (950, 1_000), (1, 1)])
def test_intervals_match_wilsons_formula(hits, trials):
    proportion, expected = Proportion.of(hits, trials), binomtest(hits, trials).proportion_ci(0.95, "wilson")
    assert (proportion.low, proportion.high) == pytest.approx((expected.low, expected.high), abs=1e-6)
