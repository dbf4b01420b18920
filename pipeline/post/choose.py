"""How many components to keep, and how many directions to remove: a curve over a few values, and its best point."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from pipeline.errors import DataError
from pipeline.post import TRANSFORMS, FromMoments
from pipeline.post.chain import fit_transform
from pipeline.post.compare import Dev, Halves, Pairs
from pipeline.post.whitening import ROWS_PER_COMPONENT
from pipeline.settings import WhitenSettings
from pipeline.stats.moments import Moments
from pipeline.stats.spectrum import RANK_TOLERANCE, spectrum_of, uncentred_spectrum_of

POINTS = 10  # of a curve over k
FEWEST = 8  # components at the low end of a curve, or a 16th of the largest where that is less
REMOVED = (
    0,
    1,
    2,
    3,
    4,
    6,
    8,
    10,
    15,
    20,
)  # all-but-the-top takes out d / 100 as a rule, BERT-flow's baselines 6 and 10
LIKELIHOOD = "log-likelihood per row, nats"


@dataclass(frozen=True)
class Curve:
    """What was found for each value of a setting (k or remove), rising; larger is better. chosen: the best value, the smallest of equals."""

    setting: str
    metric: str
    count: int
    """pairs, texts or rows behind each figure"""
    points: tuple[tuple[int, float], ...]
    chosen: int

    @property
    def behind(self) -> str:
        """What `count` counts."""
        return {Halves.metric: "texts", Pairs.metric: "pairs"}.get(self.metric, "rows held out")

    def numbers(self) -> dict[str, float | int | None]:
        """The chosen value and the whole curve, by name."""
        return {
            self.setting: self.chosen,
            **{f"{self.setting}_{value}": figure for value, figure in self.points},
        }

    @property
    def sentence(self) -> str:
        """The choice with the ends of its curve."""
        best, (low, at_low), (high, at_high) = dict(self.points)[self.chosen], self.points[0], self.points[-1]
        ends = f"{at_low:.4f} at {low}, {at_high:.4f} at {high}"
        return f"whiten.{self.setting} is {self.chosen}, the best of {len(self.points)} values by {self.metric} ({self.count:,} {self.behind}): {best:.4f}; {ends}"


def choose(
    settings: WhitenSettings, moments: Moments, dev: Dev | None = None, held: Moments | None = None
) -> tuple[WhitenSettings, tuple[Curve, ...]]:
    """The settings with numbers where `remove` and `k` say how to choose them, in this order, and the curves behind them.

    moments: of all rows; dev: the task of `dev`; held: moments of rows among them, for `likelihood`. Steps that moments do not fit are left out of the
    measurement. k stays within the rank and a fifth of the rows. What was chosen on dev has an advantage when it is compared with raw vectors on the same task,
    the smaller the more pairs there are. DataError where the vectors carry no fit.
    """
    affine, curves = settings.model_copy(update={"transform": _affine_steps(settings)}), []
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
    """Mean log-likelihood (nats) of the rows of `held` under the probabilistic PCA with k components of `fitted`, for each k; -inf where it is degenerate.

    Tipping & Bishop 1999, eq. 3 to 8: the covariance of k components is U_k (L_k - s I) U_k^T + s I, s the mean of the other eigenvalues; k as large as the
    space is the Gaussian of the whole covariance. Directions in which no row of both varies are no part of the space. Needs the moments alone:
    E[(u^T (x - m))^2] of the held rows about the mean of the fitted ones is u^T T u, with T their covariance plus the square of the means' difference.
    """
    whole = spectrum_of(fitted.merge(held))
    span = whole.vectors[:, : whole.rank].T
    fitted, held = fitted.mapped(span), held.mapped(span)
    spectrum, move = spectrum_of(fitted), held.mean - fitted.mean
    squares = np.einsum(
        "di,de,ei->i",
        spectrum.vectors,
        held.covariance() + np.outer(move, move),
        spectrum.vectors,
        optimize=True,
    )
    return [_likelihood(spectrum.eigenvalues, squares, k) for k in ks]


def _likelihood(variances: np.ndarray, squares: np.ndarray, k: int) -> float:
    """variances (r,): of the fit, largest first; squares (r,): mean squares of the held rows along the same axes."""
    noise = variances[k:].mean() if k < len(variances) else variances[-1]
    if not (noise > RANK_TOLERANCE * variances[0] and variances[k - 1] > RANK_TOLERANCE * variances[0]):
        return -np.inf
    model = np.r_[variances[:k], np.full(max(len(variances) - k, 0), noise)]
    return float(-0.5 * (len(model) * np.log(2 * np.pi) + np.log(model).sum() + (squares / model).sum()))


def _by_likelihood(moments: Moments, held: Moments) -> Curve:
    fitted = moments.without(held)
    sizes = _sizes(fitted)
    found = [
        point
        for point in zip(sizes, held_out_likelihood(fitted, held, sizes), strict=True)
        if np.isfinite(point[1])
    ]
    return _curve("k", LIKELIHOOD, held.count, found)


def _on_dev(
    setting: str, values: Iterable[int], moments: Moments, settings: WhitenSettings, dev: Dev
) -> Curve:
    transforms = (
        (value, fit_transform(moments, settings.model_copy(update={setting: value}), "")) for value in values
    )
    return _curve(
        setting, dev.metric, dev.count, [(value, dev.score(transform)) for value, transform in transforms]
    )


def _curve(setting: str, metric: str, count: int, points: list[tuple[int, float]]) -> Curve:
    if not points:
        raise DataError(
            f"whiten.{setting}",
            "a value that the vectors carry",
            "none",
            f"name a number for whiten.{setting}, or give more text",
        )
    return Curve(
        setting, metric, count, tuple(points), max(points, key=lambda point: (point[1], -point[0]))[0]
    )


def _sizes(moments: Moments) -> tuple[int, ...]:
    """Values of k, about evenly spaced by ratio, the largest that is allowed included."""
    most = max(1, min(spectrum_of(moments).rank, moments.count // ROWS_PER_COMPONENT))
    fewest = max(1, min(FEWEST, most // 16))
    return tuple(np.unique(np.geomspace(fewest, most, POINTS).round().astype(int)).tolist())


def _removals(moments: Moments, settings: WhitenSettings) -> tuple[int, ...]:
    before = _before("components", moments, settings)
    spectrum = spectrum_of(before) if settings.centred else uncentred_spectrum_of(before)
    return tuple(
        count for count in REMOVED if count < min(spectrum.rank, moments.count // ROWS_PER_COMPONENT + 1)
    )


def _before(step: str, moments: Moments, settings: WhitenSettings, moved: Moments | None = None) -> Moments:
    """Moments in front of a step; of `moved`, if given, under the transforms that `moments` fit."""
    names = settings.transform.split("+")
    front = names[: names.index(step)]
    moved = moments if moved is None else moved
    if not front:
        return moved
    affine = fit_transform(moments, settings.model_copy(update={"transform": "+".join(front)}), "").affine()
    assert affine is not None
    return moved.mapped(affine.matrix, affine.bias)


def _affine_steps(settings: WhitenSettings) -> str:
    return "+".join(
        name for name in settings.transform.split("+") if isinstance(TRANSFORMS[name], FromMoments)
    )
