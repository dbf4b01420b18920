"""Standardisation: every dimension with mean 0 and variance 1, each by itself. Li et al. 2020 (BERT-flow), the baseline SN."""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from pipeline.errors import DataError
from pipeline.post import TRANSFORMS, Affine
from pipeline.post.files import checked_vectors, content_id, read_fit, verified
from pipeline.settings import WhitenSettings
from pipeline.stats.moments import Moments
from pipeline.stats.tensors import pack

FLOOR = 1e-8  # least standard deviation that is divided by
ROUNDING = (
    2.0**-23
)  # of the mean: a smaller deviation is the rounding of a float32, and a dimension with it says nothing
FACTS = ("fitted_rows", "space_id")
NAMED = 12  # constant dimensions that a note lists


@TRANSFORMS.register("standardize")
@dataclass(frozen=True, eq=False)
class Standardize:
    """y = (x - mean) / max(std, 1e-8), population std, per dimension; a constant dimension becomes 0. Fitted by `fit_standardize`.

    mean and std (d,) float64.
    """

    kind: ClassVar[str] = "standardize"
    mean: np.ndarray
    std: np.ndarray
    fitted_rows: int
    space_id: str

    @property
    def k(self) -> int:
        """As many dimensions as went in."""
        return len(self.mean)

    @cached_property
    def scale(self) -> np.ndarray:
        """(d,) what x - mean is multiplied by."""
        return np.where(self.constant, 0.0, 1 / np.maximum(self.std, FLOOR))

    @property
    def constant(self) -> np.ndarray:
        """Mask (d,) of dimensions in which the fitted vectors are equal."""
        return np.asarray(self.std <= ROUNDING * np.abs(self.mean))

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """(n, d) -> (n, d) float32; DataError on another dimension, or a value that is not finite. The mean goes first, in float64: nothing cancels."""
        return np.asarray(((checked_vectors(x, self.k) - self.mean) * self.scale).astype(np.float32))

    def affine(self) -> Affine:
        """The map as a diagonal matrix."""
        return Affine(np.diag(self.scale).astype(np.float32), (-self.scale * self.mean).astype(np.float32))

    @cached_property
    def transform_id(self) -> str:
        """sha256 (hex) of mean and standard deviation, and of the space they belong to."""
        return content_id([self.kind, self.space_id, self.k], self.mean, self.std)

    @property
    def shortage(self) -> None:
        """A standard deviation asks for no more than the two rows without which nothing is fitted."""
        return

    @property
    def notes(self) -> tuple[str, ...]:
        """Which dimensions are constant."""
        places = np.flatnonzero(self.std < FLOOR).tolist()
        if not places:
            return (f"all {self.k} dimensions vary",)
        listed = ", ".join(map(str, places[:NAMED])) + (" ..." if len(places) > NAMED else "")
        return (
            f"{len(places)} of {self.k} dimensions are constant (standard deviation below {FLOOR:g}; counted from 0: {listed})",
        )

    def to_bytes(self) -> bytes:
        """A safetensors file; equal fits give equal bytes."""
        return pack(
            {"mean": self.mean, "std": self.std},
            {name: getattr(self, name) for name in (*FACTS, "transform_id", "kind")},
        )

    @classmethod
    def from_bytes(cls, content: bytes) -> "Standardize":
        """What `to_bytes` wrote; DataError if the file is damaged or its content does not match its transform_id."""
        tensors, header = read_fit(content, cls.kind, ("mean", "std"), FACTS)
        return verified(
            cls(tensors["mean"], tensors["std"], **{name: header[name] for name in FACTS}), header
        )

    @classmethod
    def of_moments(cls, moments: Moments, settings: WhitenSettings, space_id: str) -> "Standardize":
        """As `fit_standardize`: it has no settings."""
        return fit_standardize(moments, space_id=space_id)


def fit_standardize(moments: Moments, *, space_id: str = "") -> Standardize:
    """The standardisation of the vectors that `moments` describes. DataError with fewer than two rows, or when all rows are equal."""
    std = np.sqrt(np.maximum(moments.covariance().diagonal(), 0.0))
    fitted = Standardize(moments.mean, std, moments.count, space_id)
    if moments.count < 2 or fitted.constant.all():
        raise DataError(
            "vectors",
            "at least two rows that differ",
            f"{moments.count} rows without variance",
            "give more text, or another encoder",
        )
    return fitted
