"""Geometry matches sums over all pairs, and is invariant where it must be."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pipeline.errors import DataError
from pipeline.stats import geometry
from pipeline.stats.geometry import alignment, anisotropy, participation_ratio, uniformity, unit_rows
from pipeline.stats.sample import singular_spectrum

X = np.random.default_rng(0).normal(loc=0.4, size=(90, 12))
ROTATION = np.linalg.qr(np.random.default_rng(1).normal(size=(12, 12)))[0]


def all_pairs(x: np.ndarray) -> np.ndarray:
    """Return the cosines of all pairs of different rows."""
    return np.array(
        [
            x[i] @ x[j] / (np.linalg.norm(x[i]) * np.linalg.norm(x[j]))
            for i in range(len(x))
            for j in range(len(x))
            if i != j
        ]
    )


def test_anisotropy_is_the_mean_cosine_of_different_rows():
    assert anisotropy(X) == pytest.approx(all_pairs(X).mean(), abs=1e-12)
    assert anisotropy(np.array([[1.0, 0], [1, 1], [0, 2]])) == pytest.approx(
        0.471405, abs=1e-6
    )  # including the cosines of rows with themselves: 0.647603
    assert anisotropy(np.array([[1.0, 0], [2, 1], [1, 2], [-1, 1]])) == pytest.approx(0.239089, abs=1e-6)


def test_a_zero_vector_has_cosine_zero_with_all_others():
    assert anisotropy(np.array([[1.0, 0], [1, 0], [0, 0]])) == pytest.approx(2 / 6)


@given(arrays(np.float64, st.tuples(st.integers(2, 9), st.just(3)), elements=st.floats(-5, 5)))
def test_anisotropy_is_within_its_bounds(x: np.ndarray):
    assert (
        -1 / (len(x) - 1) - 1e-9 <= anisotropy(x) <= 1 + 1e-9
    )  # the mean cosine of n vectors is at least -1 / (n - 1)


@pytest.mark.parametrize(
    "measure", [anisotropy, lambda x: uniformity(x).value, lambda x: alignment(x[:45], x[45:])]
)
def test_rotation_and_norms_do_not_matter(measure):
    scaled = X @ ROTATION * np.random.default_rng(2).uniform(0.1, 9, size=(len(X), 1))
    assert measure(scaled) == pytest.approx(measure(X), abs=1e-12)


def test_alignment_is_the_mean_squared_distance_of_pairs():
    x, y = np.eye(2), np.array([[1.0, 1], [0, 2]])
    assert alignment(x, y) == pytest.approx(0.292893, abs=1e-6)
    assert alignment(X[:45], X[45:]) == pytest.approx(
        ((unit_rows(X[:45]) - unit_rows(X[45:])) ** 2).sum(axis=1).mean(), abs=1e-12
    )
    assert alignment(X, X) == pytest.approx(0, abs=1e-12)


def test_uniformity_excludes_pairs_of_a_row_with_itself():
    metric = uniformity(np.array([[1.0, 0], [0, 1], [-1, 0]]))
    assert metric.value == pytest.approx(
        -4.396349, abs=1e-6
    )  # including pairs of a row with itself: -1.074266
    assert (metric.count, metric.seed) == (3, None)
    assert uniformity(X).value == pytest.approx(np.log(np.exp(-2 * (2 - 2 * all_pairs(X))).mean()), abs=1e-12)


def test_uniformity_in_blocks_and_by_sampling_matches_all_pairs(monkeypatch):
    x = np.random.default_rng(3).normal(size=(400, 12))
    whole = uniformity(x).value
    monkeypatch.setattr(geometry, "_BLOCK", 7)
    assert uniformity(x).value == pytest.approx(whole, abs=1e-12)
    monkeypatch.setattr(geometry, "_BLOCK", 512)
    monkeypatch.setattr(geometry, "EXACT_ROWS", 399)
    sampled = uniformity(x, seed=5)
    assert sampled.seed == 5
    assert sampled.count >= geometry.SAMPLED_PAIRS
    assert sampled.value == pytest.approx(whole, abs=0.02)
    assert uniformity(x, seed=5) == sampled


def test_opposite_and_equal_vectors_give_the_extremes_of_uniformity():
    assert uniformity(np.array([[1.0, 0], [-3, 0]])).value == pytest.approx(-8)
    assert uniformity(np.ones((4, 3))).value == pytest.approx(0)


def test_the_participation_ratio_counts_equal_directions():
    x = np.array([[1.0, 0], [2, 1], [1, 2], [-1, 1]])
    np.testing.assert_allclose(singular_spectrum(x), [1, 0.602068], atol=1e-6)
    np.testing.assert_allclose(np.linalg.svd(x, compute_uv=False), [3.088913, 1.859736], atol=1e-6)
    assert participation_ratio(singular_spectrum(np.eye(5))) == pytest.approx(5)
    assert participation_ratio(singular_spectrum(np.outer(np.arange(1, 5), [1.0, 2, 3]))) == pytest.approx(1)
    covariance = np.cov(X.T, bias=True)
    assert participation_ratio(singular_spectrum(X, centred=True)) == pytest.approx(
        np.trace(covariance) ** 2 / (covariance**2).sum()
    )


def test_too_few_vectors_are_refused():
    for measure in (anisotropy, uniformity):
        with pytest.raises(DataError, match="at least two vectors"):
            measure(X[:1])
    with pytest.raises(DataError, match="at least one"):
        alignment(X[:0], X[:0])
