"""Drift of vectors away from those that a transform was fitted on, independent of scale."""

from dataclasses import dataclass

import numpy as np

from pipeline.stats.moments import Moments
from pipeline.stats.spectrum import spectrum_of


@dataclass(frozen=True)
class Drift:
    """Differences of current vectors from the fitted ones, after whitening, without unit; 0 without drift.

    Attributes:
        shift: root mean square, over directions, of the change of the mean in standard deviations
            (Mahalanobis distance / sqrt(rank)).
        spread: root mean square of the natural logarithm of the variance along the principal axes of the
            whitened covariance: 0.1 is about 10 % more or less variance in every direction. It is the
            affine-invariant distance of the two covariances (Foerstner & Moonen 1999) divided by sqrt(rank).
        outside: proportion of the mean square distance from the fitted mean along directions in which the
            fitted vectors did not vary.
    """

    shift: float
    spread: float
    outside: float

    @property
    def distance(self) -> float:
        """Largest of the three, for comparison with a limit."""
        return max(self.shift, self.spread, self.outside)


def drift(fitted: Moments, current: Moments) -> Drift:
    """Measure how far `current` is from `fitted`.

    Always pass the moments of the fit, not those of the previous night, so that slow drift adds up. For n and
    m rows of the same distribution in d dimensions, sampling alone gives a shift of about sqrt(1/n + 1/m) and
    a spread of about sqrt(d (1/n + 1/m)).

    Raises:
        DataError: `current` has no rows; `fitted` has fewer than two, or equal rows only.
    """
    spectrum = spectrum_of(fitted)
    axes = spectrum.vectors[:, : spectrum.rank]
    whiten = axes / np.sqrt(spectrum.eigenvalues[: spectrum.rank])
    covariance, change = current.covariance(), current.mean - fitted.mean
    variances = np.linalg.eigvalsh(whiten.T @ covariance @ whiten)
    return Drift(
        shift=_rms(change @ whiten),
        spread=_rms(np.log(np.maximum(variances, np.finfo(np.float64).tiny))),
        outside=_outside(covariance + np.outer(change, change), axes),
    )


def _outside(about_fit: np.ndarray, axes: np.ndarray) -> float:
    """Proportion of the trace of about_fit (d, d) outside the span of axes (d, r).

    about_fit is the mean outer product of the differences from the fitted mean.
    """
    total = float(np.trace(about_fit))
    return max(0.0, 1.0 - float(((about_fit @ axes) * axes).sum()) / total) if total else 0.0


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt((values**2).mean()))
