"""Standardization: mean 0 and variance 1 per dimension; the baseline SN of BERT-flow (Li et al. 2020)."""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from pipeline.errors import DataError
from pipeline.settings import WhitenSettings
from pipeline.stats.moments import Moments
from pipeline.transforms.files import TensorFile, check_vectors, content_id
from pipeline.transforms.transform import TRANSFORMS, Affine

MIN_STD = 1e-8  # lower limit of the divisor
# A dimension is constant if its standard deviation is at most this proportion of its mean: float32 rounding.
RELATIVE_ROUNDING = 2.0**-23
MAX_LISTED = 12  # constant dimensions that a note lists


@TRANSFORMS.register("standardize")
@dataclass(frozen=True, eq=False)
class Standardize(TensorFile):
    """y = (x - mean) / max(std, 1e-8) per dimension (population std); a constant dimension becomes 0."""

    kind: ClassVar[str] = "standardize"
    tensor_fields: ClassVar[tuple[str, ...]] = ("mean", "std")
    header_fields: ClassVar[tuple[str, ...]] = ("fitted_rows", "space_id")
    mean: np.ndarray
    """(d,) float64"""
    std: np.ndarray
    """(d,) float64"""
    fitted_rows: int
    """number of rows that the transform was fitted on"""
    space_id: str
    """id of the space of these rows"""

    @property
    def k(self) -> int:
        """Dimension of output and input."""
        return len(self.mean)

    @cached_property
    def scale(self) -> np.ndarray:
        """(d,) factors by which x - mean is multiplied; 0 for constant dimensions."""
        return np.where(self.is_constant, 0.0, 1 / np.maximum(self.std, MIN_STD))

    @property
    def is_constant(self) -> np.ndarray:
        """(d,) bool, True for dimensions in which the fitted vectors are equal."""
        return np.asarray(self.std <= RELATIVE_ROUNDING * np.abs(self.mean))

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Transform x (n, d): (n, d) float32. The mean is subtracted in float64, which avoids cancellation.

        Raises:
            DataError: another dimension, or values that are not finite.
        """
        return np.asarray(((check_vectors(x, self.k) - self.mean) * self.scale).astype(np.float32))

    def affine(self) -> Affine:
        """Return the map as a diagonal matrix and a bias."""
        return Affine(np.diag(self.scale).astype(np.float32), (-self.scale * self.mean).astype(np.float32))

    @cached_property
    def transform_id(self) -> str:
        """sha256 (hex) of the mean, the standard deviation and the id of their space."""
        return content_id([self.kind, self.space_id, self.k], self.mean, self.std)

    @property
    def shortage(self) -> None:
        """None, because two rows are enough, and `fit_standardize` raises DataError for fewer."""
        return

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentence about the constant dimensions, for reports."""
        constant = np.flatnonzero(self.is_constant).tolist()
        if not constant:
            return (f"all {self.k} dimensions vary",)
        listed = ", ".join(map(str, constant[:MAX_LISTED])) + (" ..." if len(constant) > MAX_LISTED else "")
        return (
            f"{len(constant)} of {self.k} dimensions are constant and become 0 (counted from 0: {listed})",
        )

    @classmethod
    def of_moments(cls, moments: Moments, settings: WhitenSettings, space_id: str) -> "Standardize":
        """Fit the standardization, which has no options; see `fit_standardize`."""
        return fit_standardize(moments, space_id=space_id)


def fit_standardize(moments: Moments, *, space_id: str = "") -> Standardize:
    """Fit the standardization of the vectors that `moments` describes.

    Raises:
        DataError: fewer than two rows, or equal rows only.
    """
    std = np.sqrt(np.maximum(moments.covariance().diagonal(), 0.0))
    transform = Standardize(moments.mean, std, moments.count, space_id)
    if moments.count < 2 or transform.is_constant.all():
        raise DataError(
            "vectors",
            "at least two rows that differ",
            f"{moments.count} rows without variance",
            "use more text, or another encoder",
        )
    return transform
