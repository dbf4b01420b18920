"""Choice of the number of components to keep, and of directions to remove: the best point of a curve."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from pipeline.errors import DataError
from pipeline.post import TRANSFORMS, FromMoments
from pipeline.post.chain import fit_transform
from pipeline.post.compare import DevPairs, DevTask, Halves
from pipeline.post.whitening import ROWS_PER_COMPONENT
from pipeline.settings import WhitenSettings
from pipeline.stats.moments import Moments
from pipeline.stats.spectrum import RANK_TOLERANCE, spectrum_of, uncentred_spectrum_of

POINTS = 10  # of a curve over k
FEWEST = 8  # smallest k of a curve, unless a 16th of the largest is smaller
# All-but-the-top usually removes d / 100 directions, the baselines of BERT-flow 6 and 10.
REMOVED = (0, 1, 2, 3, 4, 6, 8, 10, 15, 20)
LIKELIHOOD = "log-likelihood per row, nats"


@dataclass(frozen=True)
class Curve:
    """Scores of the values of a setting (k or remove), in ascending order of the values; larger is better.

    Attributes:
        setting: "k" or "remove".
        metric: name of the score.
        count: number of pairs, texts or rows behind each score.
        points: (value, score).
        chosen: the value with the best score, the smallest of equals.
    """

    setting: str
    metric: str
    count: int
    points: tuple[tuple[int, float], ...]
    chosen: int

    @property
    def behind(self) -> str:
        """Kind of items that `count` counts."""
        return {Halves.metric: "texts", DevPairs.metric: "pairs"}.get(self.metric, "rows held out")

    def numbers(self) -> dict[str, float | int | None]:
        """Return the chosen value and all scores, by name."""
        return {
            self.setting: self.chosen,
            **{f"{self.setting}_{value}": score for value, score in self.points},
        }

    @property
    def sentence(self) -> str:
        """The choice, with the scores at both ends of the curve."""
        best, (low, at_low), (high, at_high) = dict(self.points)[self.chosen], self.points[0], self.points[-1]
        return (
            f"whiten.{self.setting} is {self.chosen}, the best of {len(self.points)} values by {self.metric} "
            f"({self.count:,} {self.behind}): {best:.4f}; {at_low:.4f} at {low}, {at_high:.4f} at {high}"
        )


def tune_transform(
    settings: WhitenSettings, moments: Moments, dev: DevTask | None = None, held: Moments | None = None
) -> tuple[WhitenSettings, tuple[Curve, ...]]:
    """Replace `remove` and `k`, in this order, by numbers if the settings say how to choose them.

    Steps that cannot be fitted from moments are ignored. k is at most the rank and a fifth of the rows.
    Values chosen on dev have an advantage when they are compared with raw vectors on the same task; it
    shrinks with the number of pairs.

    Args:
        settings: with `remove` and `k` as numbers, "dev" or "likelihood".
        moments: of all rows.
        dev: task for "dev".
        held: moments of some of the rows, for "likelihood".

    Returns:
        The settings with numbers, and the curves of the choices.

    Raises:
        DataError: the vectors do not allow a fit.
    """
    steps = [name for name in settings.transform.split("+") if isinstance(TRANSFORMS[name], FromMoments)]
    affine, curves = settings.model_copy(update={"transform": "+".join(steps)}), []
    if settings.remove == "dev":
        assert dev is not None
        curves.append(_on_dev("remove", _removals(moments, affine), moments, affine, dev))
        affine = affine.model_copy(update={"remove": curves[-1].chosen})
    if settings.k == "dev":
        assert dev is not None
        curves.append(_on_dev("k", _sizes(_before("whitening", moments, affine)), moments, affine, dev))
    elif settings.k == "likelihood":
        assert held is not None
        curves.append(
            _by_likelihood(_before("whitening", moments, affine), _before("whitening", moments, affine, held))
        )
    return settings.model_copy(update={curve.setting: curve.chosen for curve in curves}), tuple(curves)


def held_out_likelihood(fitted: Moments, held: Moments, ks: Iterable[int]) -> list[float]:
    """Mean log-likelihood (nats) of held-out rows under the probabilistic PCA of the fitted rows, for each k.

    Tipping & Bishop 1999, eq. 3 to 8: the covariance with k components is U_k (L_k - s I) U_k^T + s I, with s
    the mean of the other eigenvalues; if k is the dimension, it is the full covariance. Directions without
    variance in all rows are left out. The moments suffice: with m the fitted mean and T the held-out
    covariance plus the square of the difference of the means, E[(u^T (x - m))^2] over held-out rows is u^T T
    u.

    Returns:
        One value per k; -inf if the model is degenerate.
    """
    whole = spectrum_of(fitted.merge(held))
    span = whole.vectors[:, : whole.rank].T
    fitted, held = fitted.mapped(span), held.mapped(span)
    spectrum, difference = spectrum_of(fitted), held.mean - fitted.mean
    squares = np.einsum(
        "di,de,ei->i",
        spectrum.vectors,
        held.covariance() + np.outer(difference, difference),
        spectrum.vectors,
        optimize=True,
    )
    return [_likelihood(spectrum.eigenvalues, squares, k) for k in ks]


def _likelihood(variances: np.ndarray, squares: np.ndarray, k: int) -> float:
    """Log-likelihood of probabilistic PCA with k components.

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


def _by_likelihood(moments: Moments, held: Moments) -> Curve:
    fitted = moments.without(held)
    sizes = _sizes(fitted)
    points = zip(sizes, held_out_likelihood(fitted, held, sizes), strict=True)
    return _curve("k", LIKELIHOOD, held.count, [point for point in points if np.isfinite(point[1])])


def _on_dev(
    setting: str, values: Iterable[int], moments: Moments, settings: WhitenSettings, dev: DevTask
) -> Curve:
    fits = {
        value: fit_transform(moments, settings.model_copy(update={setting: value}), "") for value in values
    }
    return _curve(setting, dev.metric, dev.count, [(value, dev.score(fit)) for value, fit in fits.items()])


def _curve(setting: str, metric: str, count: int, points: list[tuple[int, float]]) -> Curve:
    if not points:
        raise DataError(
            f"whiten.{setting}",
            "a value that the vectors allow",
            "none",
            f"set whiten.{setting} to a number, or use more text",
        )
    best, _ = max(points, key=lambda point: (point[1], -point[0]))
    return Curve(setting, metric, count, tuple(points), best)


def _sizes(moments: Moments) -> tuple[int, ...]:
    """Return values of k, about evenly spaced by ratio, up to the largest allowed."""
    most = max(1, min(spectrum_of(moments).rank, moments.count // ROWS_PER_COMPONENT))
    fewest = max(1, min(FEWEST, most // 16))
    return tuple(np.unique(np.geomspace(fewest, most, POINTS).round().astype(int)).tolist())


def _removals(moments: Moments, settings: WhitenSettings) -> tuple[int, ...]:
    before = _before("components", moments, settings)
    spectrum = spectrum_of(before) if settings.centred else uncentred_spectrum_of(before)
    most = min(spectrum.rank, moments.count // ROWS_PER_COMPONENT + 1)
    return tuple(count for count in REMOVED if count < most)


def _before(step: str, moments: Moments, settings: WhitenSettings, moved: Moments | None = None) -> Moments:
    """Transform moments by the steps that precede `step`.

    Args:
        step: name of the step.
        moments: moments that the preceding steps are fitted on.
        settings: names of the steps.
        moved: moments to transform; None for `moments`.
    """
    names = settings.transform.split("+")
    front = names[: names.index(step)]
    moved = moments if moved is None else moved
    if not front:
        return moved
    affine = fit_transform(moments, settings.model_copy(update={"transform": "+".join(front)}), "").affine()
    assert affine is not None
    return moved.mapped(affine.matrix, affine.bias)
