"""Removal of common directions.

All-but-the-top: Mu & Viswanath 2018, algorithm 1; without centring: Arora et al. 2017 (SIF), algorithm 1.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from pipeline.errors import DataError
from pipeline.post import TRANSFORMS, Affine
from pipeline.post.files import TensorFile, checked_vectors, content_id, too_few
from pipeline.settings import WhitenSettings
from pipeline.stats.moments import Moments
from pipeline.stats.spectrum import spectrum_of, uncentred_spectrum_of

ROWS_PER_DIRECTION = 5  # as for whitening: with fewer rows the directions are those of single rows


@TRANSFORMS.register("components")
@dataclass(frozen=True, eq=False)
class Components(TensorFile):
    """y = c - sum_i u_i u_i^T c with c = x - mean; see `fit_components`.

    Attributes:
        mean: (d,) float64; zero if not `centred`.
        directions: (n, d) float64, orthonormal u_i.
        centred: the mean is subtracted.
        share: proportion of the variance (of the mean square norm, if not centred) that is removed.
        fitted_rows: number of rows of the fit.
        space_id: name of the space of the fit.
    """

    kind: ClassVar[str] = "components"
    tensors: ClassVar[tuple[str, ...]] = ("mean", "directions")
    facts: ClassVar[tuple[str, ...]] = ("centred", "share", "fitted_rows", "space_id")
    mean: np.ndarray
    directions: np.ndarray
    centred: bool
    share: float
    fitted_rows: int
    space_id: str

    @property
    def k(self) -> int:
        """Dimension, the same as that of the input: removed directions become zeros."""
        return len(self.mean)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Transform x (n, d): (n, d) float32.

        DataError for another dimension or values that are not finite.
        """
        centred = checked_vectors(x, self.k) - self.mean
        return np.asarray((centred - (centred @ self.directions.T) @ self.directions).astype(np.float32))

    def affine(self) -> Affine:
        """Return the matrix I - sum_i u_i u_i^T, and the bias that it makes of -mean."""
        matrix = np.eye(self.k) - self.directions.T @ self.directions
        return Affine(matrix.astype(np.float32), (-matrix @ self.mean).astype(np.float32))

    @cached_property
    def transform_id(self) -> str:
        """sha256 (hex) of the mean, the directions and the name of their space."""
        return content_id([self.kind, self.space_id, *self.directions.shape], self.mean, self.directions)

    @property
    def shortage(self) -> str | None:
        """Reason why this fit must not be published: fewer than five rows per direction; else None."""
        count = len(self.directions)
        return too_few(self.fitted_rows, ROWS_PER_DIRECTION * count, f"for {count} directions")

    @property
    def notes(self) -> tuple[str, ...]:
        """Description of the removed directions."""
        directions = f"{len(self.directions)} direction{'s' if len(self.directions) != 1 else ''}"
        kind, carried = ("principal", "variance") if self.centred else ("singular", "mean square length")
        removed = f"{directions.replace(' ', f' {kind} ')} removed, with {self.share:.1%} of the {carried}"
        return (removed, *((self.shortage,) if self.shortage else ()))

    @classmethod
    def of_moments(cls, moments: Moments, settings: WhitenSettings, space_id: str) -> "Components":
        """Fit by `fit_components`, with the options in the settings."""
        count = settings.remove if isinstance(settings.remove, int) else 1
        return fit_components(moments, count, centred=settings.centred, space_id=space_id)


def fit_components(
    moments: Moments, count: int = 1, *, centred: bool = True, space_id: str = ""
) -> Components:
    """Fit the removal of the first `count` directions of the vectors that `moments` describes.

    Args:
        moments: of the vectors.
        count: number of directions.
        centred: subtract the mean and remove principal directions; else remove the first right singular
            vectors of the vectors as they are.
        space_id: name of the space of the vectors.

    Raises:
        DataError: fewer than two rows, values that are not finite, equal rows only, or no direction would be
            left.
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
