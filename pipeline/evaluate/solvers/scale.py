"""Regression on an integer scale: a softmax over the values of the scale (Tai et al. 2015, section 4.2).

The target distribution of a score y has probability y - floor(y) at floor(y) + 1 and the rest at floor(y), so
that its mean is y. The prediction is the mean of the predicted distribution.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

MAX_ITERATIONS = 2_000


@dataclass(frozen=True)
class ScalePredictions:
    """Predicted scores of m rows by S regressions, one for each strength of the penalty."""

    values: np.ndarray
    """(S, m)"""
    converged: bool
    """False if a fit stopped before the optimum"""


def predict_on_scale(
    x: np.ndarray, y: np.ndarray, strengths: Sequence[float], new_x: np.ndarray
) -> ScalePredictions:
    """Fit one regression for each strength on x and y, and predict the scores of the rows `new_x`.

    Minimizes |w|^2 / 2 + C * (sum of cross-entropies), which are the divergences of Tai et al. up to a
    constant. The bias is not penalized. scikit-learn has no soft targets: a row whose score lies between two
    values of the scale occurs with both, each weighted with its probability, which is the same loss.

    Args:
        x: (n, d) features.
        y: (n,) scores, at least two different ones.
        strengths: S values of C, ascending; each fit starts from the previous one.
        new_x: (m, d) features.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    x, new_x = x.astype(np.float64), new_x.astype(np.float64)
    lower = np.floor(y)
    between = np.flatnonzero(y > lower)
    rows = np.r_[np.arange(len(y)), between]
    values = np.r_[lower, lower[between] + 1].astype(np.int64)
    weights = np.r_[1.0 - (y - lower), (y - lower)[between]]
    model = LogisticRegression(max_iter=MAX_ITERATIONS, warm_start=True)
    predicted, converged = [], True
    for strength in strengths:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # `converged` reports it
            model.set_params(C=strength).fit(x[rows], values, sample_weight=weights)
        converged &= int(model.n_iter_.max()) < MAX_ITERATIONS
        predicted.append(model.predict_proba(new_x) @ model.classes_)
    return ScalePredictions(np.array(predicted), converged)
