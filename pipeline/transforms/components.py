"""Removal of the directions that vectors have in common.

Sources: Mu & Viswanath 2018 (all-but-the-top), algorithm 1; without centring, Arora et al. 2017 (SIF),
algorithm 1.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from pipeline.errors import DataError
from pipeline.settings import WhitenSettings
from pipeline.stats.moments import Moments
from pipeline.stats.spectrum import spectrum_of, uncentred_spectrum_of
from pipeline.transforms.files import TensorFile, check_vectors, content_id, too_few_rows
from pipeline.transforms.transform import TRANSFORMS, Affine

_ROWS_PER_DIRECTION = 5  # as for whitening: with fewer rows, a direction depends on single rows


@TRANSFORMS.register("components")
@dataclass(frozen=True, eq=False)
class Components(TensorFile):
    """y = c - sum_i u_i u_i^T c with c = x - mean; see `fit_components`."""

    kind: ClassVar[str] = "components"
    tensor_fields: ClassVar[tuple[str, ...]] = ("mean", "directions")
    header_fields: ClassVar[tuple[str, ...]] = ("centred", "share", "fitted_rows", "space_id")
    mean: np.ndarray
    """(d,) float64; zero if not `centred`"""
    directions: np.ndarray
    """(n, d) float64, orthonormal u_i"""
    centred: bool
    """True if the mean is subtracted"""
    share: float
    """proportion of the variance (of the mean square norm, if not centred) that is removed"""
    fitted_rows: int
    """number of rows that the transform was fitted on"""
    space_id: str
    """id of the space of these rows"""

    @property
    def k(self) -> int:
        """Dimension of output and input: removed directions become zeros."""
        return len(self.mean)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Transform x (n, d): (n, d) float32.

        Raises:
            DataError: another dimension, or values that are not finite.
        """
        centred = check_vectors(x, self.k) - self.mean
        return np.asarray((centred - (centred @ self.directions.T) @ self.directions).astype(np.float32))

    def affine(self) -> Affine:
        """Return matrix M = I - sum_i u_i u_i^T and bias -M mean."""
        matrix = np.eye(self.k) - self.directions.T @ self.directions
        return Affine(matrix.astype(np.float32), (-matrix @ self.mean).astype(np.float32))

    @cached_property
    def transform_id(self) -> str:
        """sha256 (hex) of the mean, the directions and the id of their space."""
        return content_id([self.kind, self.space_id, *self.directions.shape], self.mean, self.directions)

    @property
    def shortage(self) -> str | None:
        """Reason why the transform must not be used: fewer than five rows per direction; else None."""
        count = len(self.directions)
        return too_few_rows(self.fitted_rows, _ROWS_PER_DIRECTION * count, f"for {count} directions")

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about the removed directions, for reports."""
        count = len(self.directions)
        plural = "s" if count != 1 else ""
        kind, measure = ("principal", "variance") if self.centred else ("singular", "mean square length")
        removed = f"{count} {kind} direction{plural} removed, with {self.share:.1%} of the {measure}"
        return (removed, self.shortage) if self.shortage else (removed,)

    @classmethod
    def of_moments(cls, moments: Moments, settings: WhitenSettings, space_id: str) -> "Components":
        """Fit the removal with the options in the settings; see `fit_components`."""
        count = settings.remove if isinstance(settings.remove, int) else 1
        return fit_components(moments, count, centred=settings.centred, space_id=space_id)


def fit_components(
    moments: Moments, count: int = 1, *, centred: bool = True, space_id: str = ""
) -> Components:
    """Fit, from moments, a transform that removes the first `count` directions of the vectors.

    Args:
        moments: moments of the vectors.
        count: number of directions.
        centred: True subtracts the mean and removes principal directions; False removes right singular
            vectors of the matrix of vectors.
        space_id: id of the space of the vectors.

    Raises:
        DataError: fewer than two rows, values that are not finite, equal rows only, or a count that
            leaves no direction.
    """
    spectrum = spectrum_of(moments) if centred else uncentred_spectrum_of(moments)
    if not 0 <= count < spectrum.rank:
        raise DataError(
            "whiten.remove",
            f"0 to {spectrum.rank - 1}",
            f"{count}, and the vectors span {spectrum.rank} direction{'s' if spectrum.rank > 1 else ''}",
            "remove fewer, or use more text",
        )
    return Components(
        mean=moments.mean if centred else np.zeros(moments.dim),
        directions=np.ascontiguousarray(spectrum.vectors[:, :count].T),
        centred=centred,
        share=float(spectrum.eigenvalues[:count].sum() / spectrum.eigenvalues.sum()),
        fitted_rows=moments.count,
        space_id=space_id,
    )
