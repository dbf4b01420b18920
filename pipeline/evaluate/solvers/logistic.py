"""L2-regularized logistic regression at its optimum, for all problems in one run of L-BFGS.

A problem is a training part with a strength of the penalty. The problems share their rows, so a step for all
of them is two matrix products. The coordinates are the principal directions of the rows, in which the Hessian
is nearly diagonal, and nearly equal for all problems except for the penalty. They are scaled by the inverse
square root of the Hessian's diagonal, so that all problems are well conditioned and converge in some dozens
of steps.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

from pipeline.evaluate.solvers.linear import LinearClassifiers

# Largest entry of the final gradient of the mean loss, in the scaled coordinates.
GRADIENT_TOLERANCE = 1e-8
OPTIONS = {"maxiter": 1_000, "maxfun": 2_000, "gtol": GRADIENT_TOLERANCE, "ftol": 0.0, "maxcor": 20}


@dataclass(frozen=True)
class Lbfgs:
    """Minimizes |w|^2 / 2 + C * (sum of losses), as scikit-learn's LogisticRegression does.

    The bias is not penalized. For two classes there is one weight vector.
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
        # (d + 1, S): each factor multiplies half of a squared weight; the bias has no penalty.
        penalty = np.outer(np.r_[np.ones(len(axes)), 0.0], 1.0 / np.asarray(strengths)) / len(x)
        proportion = np.bincount(y, minlength=classes)[classes == 2 :] / len(y)
        # All classes get the same curvature: adding the same value to the logits of all classes does not
        # change the loss, and steps that are scaled equally for all classes never go in that direction.
        curvature = (proportion * (1.0 - proportion)).mean() * np.r_[np.maximum(variance, 0.0), 1.0]
        scale = 1.0 / np.sqrt(curvature[:, None] + penalty)[:, None, None]
        shape = (rows.shape[1], len(proportion), len(parts), len(strengths))
        optimum = minimize(
            _objective(rows, y, parts, penalty[:, None, None], scale, shape),
            np.zeros(int(np.prod(shape))),
            jac=True,
            method="L-BFGS-B",
            options=OPTIONS,
        )
        principal = (optimum.x.reshape(shape) * scale).transpose(2, 3, 1, 0)
        weights = principal[..., :-1] @ axes.T
        return LinearClassifiers(weights, principal[..., -1] - weights @ mean, bool(optimum.success))


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
        penalty: (d + 1, 1, 1, S); each factor multiplies half of a squared weight.
        scale: (d + 1, 1, 1, S) by which the scaled weights are multiplied to get the weights.
        shape: shape of the weights, (d + 1, K, F, S).
    """
    row_weights = (parts.T / len(rows))[:, None, :, None]  # (n, 1, F, 1), 0 outside of a part

    def objective(point: np.ndarray) -> tuple[float, np.ndarray]:
        weights = point.reshape(shape) * scale
        logits = (rows @ weights.reshape(shape[0], -1)).reshape(len(rows), *shape[1:])
        losses, residuals = _logistic_loss(logits, y) if shape[1] == 1 else _softmax_loss(logits, y)
        residuals *= row_weights
        gradient = (rows.T @ residuals.reshape(len(rows), -1)).reshape(shape) + penalty * weights
        value = np.vdot(losses.sum(axis=(1, 3)), row_weights) + 0.5 * (penalty * weights**2).sum()
        return float(value), (gradient * scale).ravel()

    return objective


def _logistic_loss(logits: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute the losses for two classes, and their gradients in the logits, both (n, 1, F, S)."""
    target = y[:, None, None, None]
    return np.logaddexp(0.0, logits) - target * logits, expit(logits) - target


def _softmax_loss(logits: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute the losses (n, 1, F, S), and their gradients in the logits (n, K, F, S).

    Overwrites the logits. Classes are the second dimension, so that sums over them add contiguous memory.
    """
    logits -= logits.max(axis=1, keepdims=True)
    label_logits = logits[np.arange(len(y)), y]
    np.exp(logits, out=logits)
    total = logits.sum(axis=1, keepdims=True)
    logits /= total
    logits[np.arange(len(y)), y] -= 1.0
    return np.log(total) - label_logits[:, None], logits
