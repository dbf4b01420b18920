"""Drift is zero for equal moments, known for known changes, and independent of scale and rotation."""

import numpy as np
import pytest

from pipeline.stats.drift import drift
from pipeline.stats.moments import Moments


@pytest.fixture(scope="module")
def x() -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.normal(size=(4_000, 10)) @ rng.normal(size=(10, 10)) + 2


def test_equal_moments_have_no_drift(x: np.ndarray) -> None:
    none = drift(Moments.of(x), Moments.of(x[::-1]))
    assert none.distance < 1e-9


def test_known_changes_have_known_drift(x: np.ndarray) -> None:
    fitted, mean, deviation = Moments.of(x), x.mean(0), x.std(0)
    wider = drift(fitted, Moments.of(mean + (x - mean) * 1.1))
    assert (wider.shift, wider.spread) == (pytest.approx(0, abs=1e-9), pytest.approx(2 * np.log(1.1)))
    x1 = x[:, :1]  # one dimension: the Mahalanobis distance is the move in standard deviations
    moved = drift(Moments.of(x1), Moments.of(x1 + 0.5 * deviation[0]))
    assert (moved.shift, moved.spread) == (pytest.approx(0.5), pytest.approx(0, abs=1e-9))


def test_units_and_axes_do_not_matter(x: np.ndarray) -> None:
    other = x * np.linspace(0.5, 1.5, 10) + 0.3
    change = np.random.default_rng(1).normal(size=(10, 10)) * 1e3
    here = drift(Moments.of(x), Moments.of(other))
    there = drift(Moments.of(x @ change), Moments.of(other @ change))
    assert (here.shift, here.spread) == (
        pytest.approx(there.shift, rel=1e-6),
        pytest.approx(there.spread, rel=1e-6),
    )


def test_sampling_alone_gives_the_documented_size() -> None:
    rng = np.random.default_rng(0)
    found = drift(Moments.of(rng.normal(size=(20_000, 64))), Moments.of(rng.normal(size=(20_000, 64))))
    assert found.shift == pytest.approx(np.sqrt(2 / 20_000), rel=0.3)
    assert found.spread == pytest.approx(np.sqrt(64 * 2 / 20_000), rel=0.1)


def test_new_variance_in_a_constant_direction_is_detected(x: np.ndarray) -> None:
    flat, awake = x.copy(), x.copy()
    flat[:, 3] = 1.0
    assert drift(Moments.of(flat), Moments.of(flat)).distance < 1e-9
    share = x[:, 3].var() + (x[:, 3].mean() - 1) ** 2
    others = flat.var(0).sum()
    assert drift(Moments.of(flat), Moments.of(awake)).outside == pytest.approx(share / (share + others))
    elsewhere = flat + 5 * np.eye(10)[3]  # still constant, at another value: no other measure changes
    assert drift(Moments.of(flat), Moments.of(elsewhere)).outside == pytest.approx(25 / (25 + others))
