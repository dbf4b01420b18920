"""L2-regularized logistic regression at its optimum, for all problems in one run of L-BFGS.

The problems are all pairs of a training part and a strength. They share their rows, so that a step is two
matrix products instead of one pass over the rows per problem. In the principal directions of the rows the
Hessian is nearly diagonal, and equal for all problems up to the penalty. Scaled by its value for rows that
all look alike, all problems are well conditioned, and some dozens of steps suffice for all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

from pipeline.evaluate.solvers.linear import LinearClassifiers

# Largest entry of the final gradient of the mean loss, in scaled coordinates with curvature at most 1.
GRADIENT = 1e-8
OPTIONS = {"maxiter": 1_000, "maxfun": 2_000, "gtol": GRADIENT, "ftol": 0.0, "maxcor": 20}


@dataclass(frozen=True)
class Lbfgs:
    """Minimizes |w|^2 / 2 + C * (sum of losses), as scikit-learn's LogisticRegression.

    The bias is not penalized; two classes share one weight vector.
    """

    name: ClassVar[str] = "lbfgs"
    strengths: ClassVar[Sequence[float]] = tuple(2.0**power for power in range(-2, 4))
    """values of C, the inverse strength (SentEval's grid for this solver)"""

    def fit(
        self, x: np.ndarray, y: np.ndarray, classes: int, parts: np.ndarray, strengths: Sequence[float]
    ) -> LinearClassifiers:
        """Fit all problems to their optimum; see `Solver.fit`."""
        x = x.astype(np.float64)
        mean = x.mean(axis=0)
        variance, axes = np.linalg.eigh((x - mean).T @ (x - mean) / len(x))
        rows = np.c_[(x - mean) @ axes, np.ones(len(x))]
        # (d + 1, S); the bias has no penalty.
        penalty = np.outer(np.r_[np.ones(len(axes)), 0.0], 1.0 / np.asarray(strengths)) / len(x)
        proportion = np.bincount(y, minlength=classes)[classes == 2 :] / len(y)
        # One curvature for all classes: adding the same value to every class does not change the loss, and
        # steps that are scaled equally for all classes never go in that direction.
        curvature = (proportion * (1.0 - proportion)).mean() * np.r_[np.maximum(variance, 0.0), 1.0]
        scale = 1.0 / np.sqrt(curvature[:, None] + penalty)[:, None, None]
        shape = (rows.shape[1], len(proportion), len(parts), len(strengths))
        found = minimize(
            _objective(rows, y, parts, penalty[:, None, None], scale, shape),
            np.zeros(int(np.prod(shape))),
            jac=True,
            method="L-BFGS-B",
            options=OPTIONS,
        )
        weights = (found.x.reshape(shape) * scale).transpose(2, 3, 1, 0)
        plain = weights[..., :-1] @ axes.T
        return LinearClassifiers(plain, weights[..., -1] - plain @ mean, bool(found.success))


def _objective(
    rows: np.ndarray,
    y: np.ndarray,
    parts: np.ndarray,
    penalty: np.ndarray,
    scale: np.ndarray,
    shape: tuple[int, ...],
) -> Callable[[np.ndarray], tuple[float, np.ndarray]]:
    """Return a function of scaled weights: the sum of all losses and penalties, and its gradient.

    Args:
        rows: (n, d + 1) principal coordinates, with a column of ones.
        y: (n,) classes.
        parts: (F, n) bool, True for the rows of a training part.
        penalty: (d + 1, 1, 1, S) factors of the squared weights.
        scale: (d + 1, 1, 1, S) weights per unit of the scaled coordinates.
        shape: of the weights: (d + 1, K, F, S).
    """
    inside = (parts.T / len(rows))[:, None, :, None]  # (n, 1, F, 1)

    def objective(point: np.ndarray) -> tuple[float, np.ndarray]:
        weights = point.reshape(shape) * scale
        logits = (rows @ weights.reshape(shape[0], -1)).reshape(len(rows), *shape[1:])
        losses, residuals = _binary(logits, y) if shape[1] == 1 else _softmax(logits, y)
        residuals *= inside
        slope = (rows.T @ residuals.reshape(len(rows), -1)).reshape(shape) + penalty * weights
        value = np.vdot(losses.sum(axis=(1, 3)), inside) + 0.5 * (penalty * weights**2).sum()
        return float(value), (slope * scale).ravel()

    return objective


def _binary(logits: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return losses and their derivatives, both (n, 1, F, S)."""
    target = y[:, None, None, None]
    return np.logaddexp(0.0, logits) - target * logits, expit(logits) - target


def _softmax(logits: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return losses (n, 1, F, S) and their derivatives (n, K, F, S).

    Classes are the second dimension, so that sums over them run along contiguous memory.
    """
    logits -= logits.max(axis=1, keepdims=True)
    own = logits[np.arange(len(y)), y]
    np.exp(logits, out=logits)
    total = logits.sum(axis=1, keepdims=True)
    logits /= total
    logits[np.arange(len(y)), y] -= 1.0
    return np.log(total) - own[:, None], logits
