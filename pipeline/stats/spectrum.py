"""Eigenvalues of a covariance, with rank, condition number and effective rank."""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh

from pipeline.errors import DataError
from pipeline.stats.moments import Moments

# Eigenvalues up to this proportion of the largest count as zero: constant dimensions of float32 vectors give
# at most 1e-14.
RANK_TOLERANCE = 1e-10


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Eigenvalues and eigenvectors of a symmetric matrix, in float64."""

    eigenvalues: np.ndarray
    """(d,), largest first"""
    vectors: np.ndarray
    """(d, d), one eigenvector per column, in the same order"""

    @property
    def rank(self) -> int:
        """Number of directions with variance: eigenvalues above RANK_TOLERANCE times the largest."""
        return int((self.eigenvalues > RANK_TOLERANCE * self.eigenvalues[0]).sum())

    @property
    def condition(self) -> float:
        """Largest eigenvalue divided by the smallest within the rank."""
        return float(self.eigenvalues[0] / self.eigenvalues[self.rank - 1])

    @property
    def effective_rank(self) -> float:
        """Participation ratio (sum l)^2 / sum l^2: d for equal variances, 1 for a single direction."""
        positive = self.eigenvalues[: self.rank]
        return float(positive.sum() ** 2 / (positive**2).sum())


def spectrum_of(moments: Moments) -> Spectrum:
    """Eigenvalues and eigenvectors of the population covariance, in float64.

    The sign of an eigenvector is arbitrary: its largest entry is made positive, so that equal moments give
    equal bytes.

    Raises:
        DataError: fewer than two rows, values that are not finite, or equal rows only.

    >>> spectrum = spectrum_of(Moments.of(np.array([[2.0, 1.0], [-2.0, 1.0]])))
    >>> round(spectrum.eigenvalues[0].item(), 4), spectrum.rank, spectrum.effective_rank
    (4.0, 1, 1.0)
    """
    spectrum = _eigendecomposition(_finite_covariance(moments))
    if not spectrum.eigenvalues[0] > np.finfo(np.float64).eps * float((moments.mean**2).max()):
        raise DataError(
            "vectors",
            "at least two different rows",
            f"{moments.count} equal rows",
            "check the encoder: it gives every text the same vector",
        )
    return spectrum


def uncentred_spectrum_of(moments: Moments) -> Spectrum:
    """Eigenvalues and eigenvectors of the second-moment matrix E[x x^T], in float64.

    E[x x^T] = covariance + mean mean^T. The eigenvectors are the right singular vectors of the rows without
    centring, the eigenvalues their squared singular values divided by the number of rows.

    Raises:
        DataError: fewer than two rows, values that are not finite, or zero rows only.
    """
    spectrum = _eigendecomposition(_finite_covariance(moments) + np.outer(moments.mean, moments.mean))
    if not spectrum.eigenvalues[0] > 0:
        raise DataError(
            "vectors",
            "a row that is not zero",
            f"{moments.count} zero rows",
            "check the encoder: it gives every text the same vector",
        )
    return spectrum


def _eigendecomposition(matrix: np.ndarray) -> Spectrum:
    eigenvalues, vectors = eigh(matrix, check_finite=False)
    eigenvalues, vectors = eigenvalues[::-1], vectors[:, ::-1]
    largest = np.abs(vectors).argmax(axis=0)
    return Spectrum(eigenvalues.copy(), vectors * np.sign(vectors[largest, np.arange(len(matrix))]))


def _finite_covariance(moments: Moments) -> np.ndarray:
    if moments.count < 2:
        raise DataError(
            "vectors",
            "at least two rows",
            f"{moments.count}",
            "use more text, or switch whitening off (whiten.mode=off)",
        )
    covariance = moments.covariance()
    if not (np.isfinite(covariance).all() and np.isfinite(moments.mean).all()):
        raise DataError(
            "moments",
            "finite values",
            "NaN or infinity",
            "encode again; such vectors should have been quarantined",
        )
    return covariance
