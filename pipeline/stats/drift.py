"""Drift: how far today's vectors have moved from the vectors that a transform was fitted on."""

from dataclasses import dataclass

import numpy as np

from pipeline.stats.moments import Moments
from pipeline.stats.spectrum import spectrum_of


@dataclass(frozen=True)
class Drift:
    """Differences between current and fitted vectors after whitening; dimensionless, 0 without drift."""

    shift: float
    """root mean square, over directions, of the change of the mean in standard deviations (Mahalanobis
    distance / sqrt(rank))"""
    spread: float
    """root mean square of the natural logarithm of the variance along the principal axes of the whitened
    covariance: 0.1 is about 10 % more or less variance in every direction. It is the affine-invariant
    distance of the two covariances (Foerstner & Moonen 1999) divided by sqrt(rank)"""
    outside: float
    """proportion of the mean squared distance from the fitted mean that is along directions in which the
    fitted vectors did not vary"""

    @property
    def distance(self) -> float:
        """Largest of shift, spread and outside, for comparison with a limit."""
        return max(self.shift, self.spread, self.outside)


def drift(fitted: Moments, current: Moments) -> Drift:
    """Measure how far `current` is from `fitted`.

    Pass the moments that the transform was fitted on, not those of the previous night, so that slow drift
    adds up. Two samples of n and m rows from one distribution in d dimensions have, by chance alone, a shift
    of about sqrt(1/n + 1/m) and a spread of about sqrt(d (1/n + 1/m)).

    Raises:
        DataError: `current` has no rows; `fitted` has fewer than two, or equal rows only.

    >>> fitted = Moments.of(np.array([[0.0], [2.0]]))
    >>> moved = Moments.of(np.array([[0.5], [2.5]]))
    >>> result = drift(fitted, moved)
    >>> round(result.shift, 4), round(result.spread, 4), round(result.outside, 4)
    (0.5, 0.0, 0.0)
    """
    spectrum = spectrum_of(fitted)
    axes = spectrum.vectors[:, : spectrum.rank]
    whiten = axes / np.sqrt(spectrum.eigenvalues[: spectrum.rank])
    covariance, change = current.covariance(), current.mean - fitted.mean
    variances = np.linalg.eigvalsh(whiten.T @ covariance @ whiten)
    return Drift(
        shift=_rms(change @ whiten),
        spread=_rms(np.log(np.maximum(variances, np.finfo(np.float64).tiny))),
        outside=_outside_proportion(covariance + np.outer(change, change), axes),
    )


def _outside_proportion(second_moment: np.ndarray, axes: np.ndarray) -> float:
    """Proportion of the trace of second_moment (d, d) outside the span of axes (d, r).

    second_moment is the mean outer product of the differences from the fitted mean.
    """
    total = float(np.trace(second_moment))
    return max(0.0, 1.0 - float(((second_moment @ axes) * axes).sum()) / total) if total else 0.0


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt((values**2).mean()))
