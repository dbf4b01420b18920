"""Classifier two-sample test: success of a classifier that distinguishes two samples of vectors.

Lopez-Paz and Oquab, "Revisiting Classifier Two-Sample Tests" (ICLR 2017): a classifier is trained on one half
of both samples, and its success on the other half shows how much the distributions differ. It is a logistic
regression, whose penalty is chosen by cross-validation within the first half. Its success is the area under
the ROC curve, which does not depend on the sizes of the samples: 0.5 for equal distributions, 1 if they are
separable. The other half is used once, so the interval of the area holds for any classifier that was trained.
The areas of the folds of a cross-validation over all rows depend on each other, which such an interval would
not take into account.
"""

import numpy as np

from pipeline.evaluate.solvers.logistic import Lbfgs
from pipeline.stats.auc import AreaUnderCurve, area_under_curve

LEAST_ROWS = 20
"""least number of rows of each sample"""
_FOLDS = 4
_STRENGTHS = tuple(2.0**power for power in range(-14, 1, 2))  # C; vectors have unit variance
_SEED = 20_170_424


def separability(one: np.ndarray, other: np.ndarray) -> AreaUnderCurve:
    """Estimate how well two samples are distinguished: how often the classifier orders a row of each.

    Args:
        one: (m, d) vectors, m >= LEAST_ROWS.
        other: (n, d) vectors, n >= LEAST_ROWS. No row should be in both.
    """
    rng = np.random.default_rng(_SEED)
    x = np.r_[one, other].astype(np.float64)
    y = np.r_[np.ones(len(one), np.int64), np.zeros(len(other), np.int64)]
    halves = [np.array_split(rng.permutation(np.flatnonzero(y == label)), 2) for label in (1, 0)]
    train, test = (np.concatenate(part) for part in zip(*halves, strict=True))
    mean, spread = x[train].mean(axis=0), x[train].std(axis=0)
    x = (x - mean) / np.where(spread > 0, spread, 1.0)
    weights = _fit(x[train], y[train])
    scores = x[test] @ weights
    return area_under_curve(scores[y[test] == 1], scores[y[test] == 0])


def _fit(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the weights (d,) with the penalty whose mean area over folds is highest; equal: the strongest.

    Args:
        x: (n, d) standardized vectors, in a random order within each class.
        y: (n,) classes 0 and 1.
    """
    folds = np.empty(len(y), np.int64)
    for label in (0, 1):
        rows = np.flatnonzero(y == label)
        folds[rows] = np.arange(len(rows)) % _FOLDS
    parts = np.stack([*(folds != fold for fold in range(_FOLDS)), np.ones(len(y), bool)])
    fitted = Lbfgs().fit(x, y, 2, parts, _STRENGTHS)
    areas = np.zeros(len(_STRENGTHS))
    for fold in range(_FOLDS):
        held, labels = x[folds == fold], y[folds == fold]
        for strength in range(len(_STRENGTHS)):
            scores = held @ fitted.weights[fold, strength, 0]
            areas[strength] += area_under_curve(scores[labels == 1], scores[labels == 0]).value
    return np.asarray(fitted.weights[_FOLDS, int(areas.argmax()), 0])
