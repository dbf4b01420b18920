"""The interface of solvers, and the linear classifiers that they fit."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np


@dataclass(frozen=True)
class LinearClassifiers:
    """Fitted linear classifiers, one for each of F training parts and S strengths of the penalty."""

    weights: np.ndarray
    """(F, S, K, d) float64; K is the number of classes, but may be 1 if there are two classes"""
    bias: np.ndarray
    """(F, S, K) float64"""
    converged: bool = True
    """False if the solver stopped before its criterion was met"""

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Predict the classes of x (n, d): (F, S, n)."""
        logits = np.tensordot(self.weights, x, axes=(3, 1)) + self.bias[..., None]
        if logits.shape[2] == 1:
            return np.asarray((logits[:, :, 0] > 0).astype(np.int64))
        return np.asarray(logits.argmax(axis=2))


class Solver(Protocol):
    """A method to fit logistic regressions."""

    name: ClassVar[str]
    strengths: ClassVar[Sequence[float]]
    """values to choose the penalty from, the strongest penalty first"""

    def fit(
        self, x: np.ndarray, y: np.ndarray, classes: int, parts: np.ndarray, strengths: Sequence[float]
    ) -> LinearClassifiers:
        """Fit one classifier per training part and strength.

        Args:
            x: (n, d) vectors.
            y: (n,) classes from 0 to classes - 1.
            classes: number of classes.
            parts: (F, n) bool, True for the rows of each training part; every class occurs in every part.
            strengths: S strengths of the penalty.
        """
