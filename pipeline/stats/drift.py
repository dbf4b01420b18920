"""How far vectors have moved from those that a transform was fitted on, free of scale."""

from dataclasses import dataclass

import numpy as np

from pipeline.stats.moments import Moments
from pipeline.stats.spectrum import spectrum_of


@dataclass(frozen=True)
class Drift:
    """Current vectors, seen through the whitening of the fitted ones; both figures are 0 without drift and know no units.

    shift: root mean square, over directions, of the move of the mean in standard deviations (Mahalanobis distance / sqrt(rank)).
    spread: root mean square of the natural logarithm of the variance along the principal axes of the whitened covariance: 0.1 is
    about 10 % more or less variance in every direction. It is the affine-invariant distance of the two covariances (Foerstner & Moonen 1999)
    divided by sqrt(rank). outside: share of the mean square distance from the fitted mean that lies in directions in which the fitted vectors did not vary.
    """

    shift: float
    spread: float
    outside: float

    @property
    def distance(self) -> float:
        """One figure to hold against a bound: the largest of the three."""
        return max(self.shift, self.spread, self.outside)


def drift(fitted: Moments, current: Moments) -> Drift:
    """How far `current` has moved from `fitted`; always the moments of the fit, never last night's: slow drift must add up.

    Sampling alone gives, for n and m rows in d dimensions, a shift of about sqrt(1/n + 1/m) and a spread of about sqrt(d (1/n + 1/m)).
    DataError if `current` has no rows, or `fitted` fewer than two or equal ones only.
    """
    spectrum = spectrum_of(fitted)
    axes = spectrum.vectors[:, : spectrum.rank]
    whiten = axes / np.sqrt(spectrum.eigenvalues[: spectrum.rank])
    covariance, move = current.covariance(), current.mean - fitted.mean
    variances = np.linalg.eigvalsh(whiten.T @ covariance @ whiten)
    return Drift(
        shift=_rms(move @ whiten),
        spread=_rms(np.log(np.maximum(variances, np.finfo(np.float64).tiny))),
        outside=_outside(covariance + np.outer(move, move), axes),
    )


def _outside(about_fit: np.ndarray, axes: np.ndarray) -> float:
    """Share of the trace of about_fit (d, d), the mean square distance from the fitted mean, that lies outside the span of axes (d, r)."""
    total = float(np.trace(about_fit))
    return max(0.0, 1.0 - float(((about_fit @ axes) * axes).sum()) / total) if total else 0.0


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt((values**2).mean()))
