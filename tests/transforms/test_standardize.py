"""Every dimension gets mean 0 and variance 1, also far from zero; the oracles are numpy and scikit-learn."""

import numpy as np
import pytest
from sklearn.preprocessing import StandardScaler

from pipeline.errors import DataError
from pipeline.stats.moments import Moments, merge_tree
from pipeline.transforms.standardize import Standardize, fit_standardize
from pipeline.transforms.transform import load_transform

X = np.array([[2.0, 0], [0, 1], [-2, 1], [4, 2]])


def vectors(rows: int = 2_000, dim: int = 24, seed: int = 0) -> np.ndarray:
    """Return rows whose distance from zero is a thousand times their standard deviation."""
    rng = np.random.default_rng(seed)
    return (
        rng.normal(size=(rows, dim)) @ rng.normal(size=(dim, dim)) * 1e-2 + rng.uniform(5, 20, dim)
    ).astype(np.float32)


def test_four_points_match_a_hand_computation() -> None:
    expected = [[0.447214, -1.414214], [-0.447214, 0], [-1.341641, 0], [1.341641, 1.414214]]
    np.testing.assert_allclose(fit_standardize(Moments.of(X))(X), expected, atol=1e-6)


def test_merged_shards_match_scikit_learn() -> None:
    x = vectors()
    fitted = fit_standardize(merge_tree(Moments.of(part) for part in np.split(x, [3, 4, 900])))
    oracle = StandardScaler().fit(x.astype(np.float64))
    np.testing.assert_allclose(fitted.mean, oracle.mean_, rtol=1e-14)
    np.testing.assert_allclose(fitted.std, oracle.scale_, rtol=1e-12)
    unseen = vectors(50, seed=1)
    np.testing.assert_allclose(fitted(unseen), oracle.transform(unseen.astype(np.float64)), atol=1e-5)


def test_constant_dimensions_become_zero_and_are_listed() -> None:
    x = vectors()
    x[:, 3], x[:, 9], x[:, 20] = 0.1, 0, 1e-4
    x[:, 5] = 1 + 2.0**-23 * (np.arange(len(x)) % 2)  # neighbouring float32 values
    fitted = fit_standardize(Moments.of(x))
    assert fitted.notes == ("4 of 24 dimensions are constant and become 0 (counted from 0: 3, 5, 9, 20)",)
    y = fitted(x)
    assert not y[:, [3, 5, 9, 20]].any()
    affine = fitted.affine()
    assert not affine.matrix[3].any(), "an index would multiply the rounding of a float32 by 1e8"
    assert affine.bias[3] == 0
    np.testing.assert_allclose(y.std(axis=0)[[0, 23]], 1, atol=1e-4)
    assert fit_standardize(Moments.of(vectors())).notes == ("all 24 dimensions vary",)


def test_small_standard_deviations_are_raised_to_the_floor() -> None:
    x = np.random.default_rng(0).normal(size=(100, 2)) * [1, 1e-9]
    fitted = fit_standardize(Moments.of(x))
    np.testing.assert_allclose(fitted(x)[:, 1], (x[:, 1] - x[:, 1].mean()) / 1e-8, atol=1e-6)


def test_the_affine_map_equals_the_transform() -> None:
    x = np.random.default_rng(0).normal(size=(400, 24)) * np.arange(1, 25) + 2
    fitted = fit_standardize(Moments.of(x))
    affine = fitted.affine()
    assert affine.matrix.dtype == affine.bias.dtype == np.float32
    np.testing.assert_allclose(x @ affine.matrix.T + affine.bias, fitted(x), atol=1e-5)


def test_a_file_preserves_every_bit_and_the_id_includes_the_space() -> None:
    fitted = fit_standardize(Moments.of(vectors()), space_id="a space")
    back = load_transform(fitted.to_bytes())
    assert isinstance(back, Standardize)
    assert (back.to_bytes(), back.transform_id, back.space_id, back.fitted_rows) == (
        fitted.to_bytes(),
        fitted.transform_id,
        "a space",
        2_000,
    )
    assert fit_standardize(Moments.of(vectors()), space_id="b").transform_id != fitted.transform_id
    content = fitted.to_bytes()
    with pytest.raises(DataError, match="damaged"):
        load_transform(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])


@pytest.mark.parametrize("x", [np.ones((0, 4)), np.ones((1, 4)), np.ones((60, 4))])
def test_equal_rows_are_refused(x: np.ndarray) -> None:
    with pytest.raises(DataError):
        fit_standardize(Moments.of(x))


@pytest.mark.parametrize("x", [np.ones((2, 23)), np.full((2, 24), np.nan), np.ones(24)])
def test_invalid_vectors_are_refused(x: np.ndarray) -> None:
    with pytest.raises(DataError, match="vectors to transform"):
        fit_standardize(Moments.of(vectors()))(x)
