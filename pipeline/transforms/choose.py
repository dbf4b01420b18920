"""Tuning of whiten.k and whiten.remove: the number of components to keep, and of directions to remove."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from pipeline.errors import DataError
from pipeline.settings import WhitenSettings
from pipeline.stats.moments import Moments
from pipeline.stats.spectrum import RANK_TOLERANCE, spectrum_of, uncentred_spectrum_of
from pipeline.transforms.chain import fit_transform
from pipeline.transforms.compare import DevTask
from pipeline.transforms.transform import TRANSFORMS, FromMoments
from pipeline.transforms.whitening import ROWS_PER_COMPONENT

_K_VALUES = 10  # number of values of k that are scored
_MIN_K = 8  # smallest value of k that is scored, unless a 16th of the largest is smaller
# Values of remove that are scored. All-but-the-top usually removes d / 100 directions; the baselines in the
# BERT-flow paper remove 6 and 10.
_REMOVE_VALUES = (0, 1, 2, 3, 4, 6, 8, 10, 15, 20)


@dataclass(frozen=True)
class Curve:
    """Scores of several values of a setting (k or remove); larger is better."""

    setting: str
    """"k" or "remove"."""
    metric: str
    """name of the score"""
    count: int
    """number of texts, pairs or rows that each score is computed from"""
    unit: str
    """name of the items counted: "texts", "pairs" or "rows held out"."""
    points: tuple[tuple[int, float], ...]
    """pairs of a value and its score, in ascending order of the values"""
    chosen: int
    """the value with the best score; of values with equal scores, the smallest"""

    def numbers(self) -> dict[str, float | int | None]:
        """Return the chosen value and all scores, by name, for reports."""
        scores = {f"{self.setting}_{value}": score for value, score in self.points}
        return {self.setting: self.chosen, **scores}

    @property
    def sentence(self) -> str:
        """Sentence for reports: the choice, with the scores at both ends of the curve."""
        best = dict(self.points)[self.chosen]
        (low, at_low), (high, at_high) = self.points[0], self.points[-1]
        return (
            f"whiten.{self.setting} is {self.chosen}, the best of {len(self.points)} values by {self.metric} "
            f"({self.count:,} {self.unit}): {best:.4f}; {at_low:.4f} at {low}, {at_high:.4f} at {high}"
        )


def tune_transform(
    settings: WhitenSettings, moments: Moments, dev: DevTask | None = None, held_out: Moments | None = None
) -> tuple[WhitenSettings, tuple[Curve, ...]]:
    """Choose the numbers for `remove`, then `k`, where the settings give a criterion instead of a number.

    Steps that cannot be fitted from moments are ignored. k is at most the rank and a fifth of the rows.
    A value chosen on the dev task has an unfair advantage when the transform is compared with raw vectors on
    the same task; the advantage shrinks with the number of pairs.

    Args:
        settings: settings whose `k` and `remove` are numbers or say how to choose them: "dev" (both) or
            "likelihood" (k only).
        moments: moments of all rows.
        dev: task whose score "dev" maximizes.
        held_out: moments of some of these rows; "likelihood" maximizes their likelihood under a fit on the
        other rows.

    Returns:
        The settings with numbers, and the curves of the choices.

    Raises:
        DataError: the vectors do not allow a fit.
    """
    steps = [name for name in settings.transform.split("+") if isinstance(TRANSFORMS[name], FromMoments)]
    affine_settings = settings.model_copy(update={"transform": "+".join(steps)})
    curves: list[Curve] = []
    if settings.remove == "dev":
        assert dev is not None
        values = _remove_values(moments, affine_settings)
        curves.append(_dev_curve("remove", values, moments, affine_settings, dev))
        affine_settings = affine_settings.model_copy(update={"remove": curves[-1].chosen})
    if settings.k == "dev":
        assert dev is not None
        values = _k_values(_moments_before("whitening", moments, affine_settings))
        curves.append(_dev_curve("k", values, moments, affine_settings, dev))
    elif settings.k == "likelihood":
        assert held_out is not None
        moments_before = _moments_before("whitening", moments, affine_settings)
        held_out_before = _moments_before("whitening", moments, affine_settings, held_out)
        curves.append(_likelihood_curve(moments_before, held_out_before))
    return settings.model_copy(update={curve.setting: curve.chosen for curve in curves}), tuple(curves)


def held_out_likelihood(fitted: Moments, held_out: Moments, ks: Iterable[int]) -> list[float]:
    """Mean log-likelihood (nats) of held-out rows under the probabilistic PCA of the fitted rows, for each k.

    Tipping & Bishop 1999, eq. 3 to 8: the covariance with k components is U_k (L_k - s I) U_k^T + s I, with s
    the mean of the other eigenvalues; if k is the dimension, it is the full covariance. Directions in which
    no row varies are left out.

    Moments suffice: the mean of (u^T (x - m))^2 over the held-out rows x, with m the fitted mean, is u^T T u,
    where T is the held-out covariance plus the outer product of the difference of the means.

    Returns:
        One value per k; -inf if the model is degenerate.
    """
    all_rows = spectrum_of(fitted.merge(held_out))
    span = all_rows.vectors[:, : all_rows.rank].T
    fitted, held_out = fitted.transform(span), held_out.transform(span)
    spectrum, difference = spectrum_of(fitted), held_out.mean - fitted.mean
    squares_matrix = held_out.covariance() + np.outer(difference, difference)
    axes = spectrum.vectors
    squares = np.einsum("di,de,ei->i", axes, squares_matrix, axes, optimize=True)
    return [_likelihood(spectrum.eigenvalues, squares, k) for k in ks]


def _likelihood(variances: np.ndarray, squares: np.ndarray, k: int) -> float:
    """Mean log-likelihood per row of probabilistic PCA with k components.

    Args:
        variances: (r,) eigenvalues of the fit, largest first.
        squares: (r,) mean squares of the held-out rows along the same axes.
        k: number of components.
    """
    noise = variances[k:].mean() if k < len(variances) else variances[-1]
    if not (noise > RANK_TOLERANCE * variances[0] and variances[k - 1] > RANK_TOLERANCE * variances[0]):
        return -np.inf
    model = np.r_[variances[:k], np.full(max(len(variances) - k, 0), noise)]
    return float(-0.5 * (len(model) * np.log(2 * np.pi) + np.log(model).sum() + (squares / model).sum()))


def _likelihood_curve(moments: Moments, held_out: Moments) -> Curve:
    """Score values of k by the likelihood of the held-out rows under a fit on the other rows."""
    fitted = moments.without(held_out)
    values = _k_values(fitted)
    scores = dict(zip(values, held_out_likelihood(fitted, held_out, values), strict=True))
    finite = {k: score for k, score in scores.items() if np.isfinite(score)}
    return _best_of("k", finite, "log-likelihood per row, nats", held_out.count, "rows held out")


def _dev_curve(
    setting: str, values: Iterable[int], moments: Moments, settings: WhitenSettings, dev: DevTask
) -> Curve:
    """Score each value of a setting on the dev task, with a transform that is fitted with it."""
    scores = {
        value: dev.score(fit_transform(moments, settings.model_copy(update={setting: value}), ""))
        for value in values
    }
    return _best_of(setting, scores, dev.metric, dev.count, dev.unit)


def _best_of(setting: str, scores: dict[int, float], metric: str, count: int, unit: str) -> Curve:
    """Return the scores by the setting's values, and the best value; raise DataError without scores."""
    if not scores:
        raise DataError(
            f"whiten.{setting}",
            "a value that the vectors allow",
            "none",
            f"set whiten.{setting} to a number, or use more text",
        )
    best = max(scores, key=lambda value: (scores[value], -value))
    return Curve(setting, metric, count, unit, tuple(scores.items()), best)


def _k_values(moments: Moments) -> tuple[int, ...]:
    """Return the values of k to score: from the smallest to the largest allowed, by about equal ratios."""
    largest = max(1, min(spectrum_of(moments).rank, moments.count // ROWS_PER_COMPONENT))
    smallest = max(1, min(_MIN_K, largest // 16))
    return tuple(np.unique(np.geomspace(smallest, largest, _K_VALUES).round().astype(int)).tolist())


def _remove_values(moments: Moments, settings: WhitenSettings) -> tuple[int, ...]:
    """Return the values of remove to score: the values of _REMOVE_VALUES that the vectors allow."""
    moments_before = _moments_before("components", moments, settings)
    spectrum = spectrum_of(moments_before) if settings.centred else uncentred_spectrum_of(moments_before)
    limit = min(spectrum.rank, moments.count // ROWS_PER_COMPONENT + 1)
    return tuple(count for count in _REMOVE_VALUES if count < limit)


def _moments_before(
    step: str, moments: Moments, settings: WhitenSettings, raw: Moments | None = None
) -> Moments:
    """Compute the moments of vectors that the steps before `step` have transformed.

    Args:
        step: name of the step.
        moments: moments of the raw vectors that the preceding steps are fitted on.
        settings: names and options of all steps.
        raw: moments of the raw vectors to transform; None if they are `moments`.
    """
    raw = moments if raw is None else raw
    names = settings.transform.split("+")
    preceding = "+".join(names[: names.index(step)])
    if not preceding:
        return raw
    affine = fit_transform(moments, settings.model_copy(update={"transform": preceding}), "").affine()
    assert affine is not None
    return raw.transform(affine.matrix, affine.bias)
