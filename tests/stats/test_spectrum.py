"""Rank, condition and effective rank of covariances with a known spectrum."""

import numpy as np
import pytest

from pipeline.errors import DataError
from pipeline.stats.moments import Moments
from pipeline.stats.spectrum import spectrum_of, uncentred_spectrum_of


def moments_with(eigenvalues: list[float], seed: int = 0) -> Moments:
    """Return moments of 100 rows with this spectrum in a random orthogonal basis."""
    dim = len(eigenvalues)
    basis, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(dim, dim)))
    covariance = (basis * eigenvalues) @ basis.T
    return Moments(100, np.ones(dim), 100 * (covariance + covariance.T) / 2)


def test_a_known_spectrum_is_recovered() -> None:
    spectrum = spectrum_of(moments_with([4.0, 2.0, 1.0, 1e-14]))
    np.testing.assert_allclose(spectrum.eigenvalues[:3], [4, 2, 1])
    assert spectrum.rank == 3
    assert spectrum.condition == pytest.approx(4)
    assert spectrum.effective_rank == pytest.approx(49 / 21)


def test_eigenvectors_reconstruct_the_covariance_with_fixed_signs() -> None:
    moments = moments_with([3.0, 2.0, 1.0, 0.5])
    spectrum = spectrum_of(moments)
    np.testing.assert_allclose(
        (spectrum.vectors * spectrum.eigenvalues) @ spectrum.vectors.T, moments.covariance(), atol=1e-12
    )
    assert (spectrum.vectors[np.abs(spectrum.vectors).argmax(0), range(4)] > 0).all()


@pytest.mark.parametrize(
    ("moments", "message"),
    [
        (Moments.empty(3), "at least two rows, found 0"),
        (Moments.of(np.ones((1, 3))), "at least two rows, found 1"),
        (Moments.of(np.full((50, 3), 0.1)), "50 equal rows"),
        (Moments.of(np.full((50, 3), 1e4, np.float32)), "50 equal rows"),
        (Moments(9, np.zeros(2), np.full((2, 2), np.nan)), "NaN or infinity"),
    ],
)
def test_moments_without_variance_are_refused(moments: Moments, message: str) -> None:
    with pytest.raises(DataError, match=message):
        spectrum_of(moments)


def test_the_uncentred_spectrum_matches_singular_values() -> None:
    x = np.random.default_rng(0).normal(loc=3, size=(200, 6))
    spectrum, (_, singular, right) = (
        uncentred_spectrum_of(Moments.of(x)),
        np.linalg.svd(x, full_matrices=False),
    )
    np.testing.assert_allclose(spectrum.eigenvalues, singular**2 / 200, rtol=1e-10)
    np.testing.assert_allclose(np.abs(spectrum.vectors.T @ right.T), np.eye(6), atol=1e-8)
    with pytest.raises(DataError, match="not zero"):
        uncentred_spectrum_of(Moments.of(np.zeros((9, 3))))
