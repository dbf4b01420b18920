"""Two samples of one distribution are not distinguished, and others as far as is possible."""

import numpy as np
import pytest
from scipy.stats import norm

from pipeline.evaluate.two_samples import LEAST_ROWS, separability


@pytest.mark.slow
def test_equal_distributions_give_an_interval_with_a_half_at_the_promised_rate():
    """200 pairs of samples: the standard error of a rate of 95 % is 1.5 %."""
    rng = np.random.default_rng(4)
    found = [separability(rng.normal(size=(60, 8)), rng.normal(size=(90, 8))) for _ in range(200)]
    rate = np.mean([each.low <= 0.5 <= each.high for each in found])
    assert 0.9 < rate < 0.99
    assert np.mean([each.value for each in found]) == pytest.approx(0.5, abs=0.02)


def test_the_area_is_close_to_the_best_that_any_classifier_has():
    """Normal distributions whose means differ by delta: the best area is Phi(delta / sqrt(2))."""
    rng, delta = np.random.default_rng(5), 1.2
    shift = delta * np.eye(16)[0]
    found = separability(rng.normal(size=(1_500, 16)) + shift, rng.normal(size=(1_500, 16)))
    best = norm.cdf(delta / np.sqrt(2))
    assert found.value == pytest.approx(best, abs=0.02)
    assert found.low < best < found.high + 0.01


def test_scales_of_components_do_not_matter_and_constant_ones_are_allowed():
    rng = np.random.default_rng(6)
    one, other = rng.normal(0.5, 1, (80, 6)), rng.normal(0, 1, (80, 6))
    scales = np.array([1e-6, 1, 1e6, 3, 0, 7])
    assert separability(one * scales, other * scales).value == pytest.approx(
        separability(one * (scales > 0), other * (scales > 0)).value, abs=1e-6
    )


def test_few_rows_are_enough_and_the_result_is_the_same_every_time():
    rng = np.random.default_rng(8)
    one, other = rng.normal(3, 1, (LEAST_ROWS, 48)), rng.normal(0, 1, (LEAST_ROWS, 48))
    assert separability(one, other) == separability(one, other)
    assert separability(one, other).value > 0.9
