"""Linear classifiers of frozen vectors, fitted many at a time: one for every training part and every strength of the penalty."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np


@dataclass(frozen=True)
class Linear:
    """F training parts x S strengths: weights (F, S, K, d) and bias (F, S, K), float64. K is the number of classes, or 1 for two."""

    weights: np.ndarray
    bias: np.ndarray
    converged: bool = True
    """False where the solver stopped before its criterion held"""

    def predict(self, x: np.ndarray) -> np.ndarray:
        """(F, S, n) classes of x (n, d)."""
        logits = np.tensordot(self.weights, x, axes=(3, 1)) + self.bias[..., None]
        return np.asarray(
            (logits[:, :, 0] > 0).astype(np.int64) if logits.shape[2] == 1 else logits.argmax(axis=2)
        )


class Solver(Protocol):
    """A way to fit a logistic regression."""

    name: ClassVar[str]
    strengths: ClassVar[Sequence[float]]
    """what is tried, the strongest penalty first"""

    def fit(
        self, x: np.ndarray, y: np.ndarray, classes: int, parts: np.ndarray, strengths: Sequence[float]
    ) -> Linear:
        """Classifiers of x (n, d) with labels y (n,) in 0..classes-1, each fitted on the rows of one of parts (F, n) bool, in which every class occurs."""
        ...


def solver_of(name: str, seed: int) -> Solver:
    """lbfgs or sgd; seed: of whatever is drawn by chance."""
    from pipeline.evaluate.solvers.logistic import Lbfgs
    from pipeline.evaluate.solvers.sgd import Sgd

    return Lbfgs() if name == "lbfgs" else Sgd(seed)
