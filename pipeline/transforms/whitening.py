"""Whitening: an affine map that gives the fitted vectors mean 0 and covariance I.

Source: Su et al. 2021, eq. 3 to 5.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np

from pipeline.errors import DataError
from pipeline.settings import WhitenSettings
from pipeline.stats.moments import Moments
from pipeline.stats.spectrum import RANK_TOLERANCE, spectrum_of
from pipeline.transforms.files import TensorFile, check_vectors, content_id, too_few_rows
from pipeline.transforms.transform import TRANSFORMS, Affine

# With n rows and n - 1 components, all pairs of rows have the same cosine, -1 / (n - 1). 5 rows are enough.
ROWS_PER_COMPONENT = 5


@TRANSFORMS.register("whitening")
@dataclass(frozen=True, eq=False)
class Whitening(TensorFile):
    """y = x @ matrix.T + bias, as a faiss LinearTransform computes it; see `fit_whitening`."""

    kind: ClassVar[str] = "whitening"
    tensor_fields: ClassVar[tuple[str, ...]] = ("matrix", "bias", "eigenvalues")
    header_fields: ClassVar[tuple[str, ...]] = (
        "rank",
        "condition",
        "effective_rank",
        "fitted_rows",
        "requested",
        "space_id",
    )
    optional_fields: ClassVar[Mapping[str, object]] = {"kept": None, "shrinkage": 0.0, "ridge": 0.0}
    matrix: np.ndarray
    """(k, d) float32"""
    bias: np.ndarray
    """(k,) float32"""
    eigenvalues: np.ndarray
    """(d,) float64, of the covariance, largest first"""
    rank: int
    """number of directions with variance"""
    condition: float
    """condition number of the covariance; see `stats.spectrum.Spectrum`"""
    effective_rank: float
    """participation ratio of the eigenvalues; see `stats.spectrum.Spectrum`"""
    fitted_rows: int
    """number of rows that the transform was fitted on"""
    requested: int | None
    """whiten.k as a number; None if it was not set"""
    space_id: str
    """id of the space of these rows"""
    kept: int | None = None
    """for zca, whose matrix is (d, d), the number of components; None for pca"""
    shrinkage: float = 0.0
    """shrinkage of the covariance that was applied"""
    ridge: float = 0.0
    """ridge that was applied, as a proportion of the mean eigenvalue"""

    @property
    def k(self) -> int:
        """Dimension of the output: the number of components, or d for zca."""
        return len(self.matrix)

    @property
    def components(self) -> int:
        """Number of components; less than `k` if zca maps them back into all dimensions."""
        return self.kept or len(self.matrix)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Whiten x (n, d): (n, k) float32.

        Raises:
            DataError: another dimension, or values that are not finite.
        """
        whitened = check_vectors(x, self.matrix.shape[1]).astype(np.float32, copy=False) @ self.matrix.T
        whitened += self.bias
        return np.asarray(whitened)

    def affine(self) -> Affine:
        """Return the matrix and the bias."""
        return Affine(self.matrix, self.bias)

    @cached_property
    def transform_id(self) -> str:
        """sha256 (hex) of the matrix, the bias and the id of their space."""
        return content_id([self.kind, self.space_id, *self.matrix.shape], self.matrix, self.bias)

    @property
    def shortage(self) -> str | None:
        """Reason why the transform must not be used: fewer than five rows per component; else None."""
        needed, purpose = ROWS_PER_COMPONENT * self.components, f"to whiten {self.components} components"
        return too_few_rows(self.fitted_rows, needed, purpose)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about the fit, for reports."""
        dim = len(self.eigenvalues)
        size = f"{self.components} of {dim} components are kept"
        if self.requested is not None and self.requested > self.components:
            size = f"whiten.k={self.requested} was lowered to {self.components}"
        if self.rank < dim:
            size += f"; the vectors vary in {self.rank} of {dim} directions only"
        notes = [size]
        if self.fitted_rows <= dim:
            notes.append(
                f"{self.fitted_rows:,} rows are no more than the {dim} dimensions: "
                "their covariance says nothing about some directions"
            )
        if self.shrinkage > 0:
            notes.append(f"the covariance was shrunk to a multiple of the identity by {self.shrinkage:.4g}")
        if self.ridge > 0:
            notes.append(f"{self.ridge:g} of the mean eigenvalue was added to every eigenvalue")
        return (*notes, self.shortage) if self.shortage else tuple(notes)

    @classmethod
    def of_moments(cls, moments: Moments, settings: WhitenSettings, space_id: str) -> "Whitening":
        """Fit the whitening with the options in the settings; see `fit_whitening`."""
        return fit_whitening(
            moments,
            settings.k if isinstance(settings.k, int) else None,
            space_id=space_id,
            rotation=settings.rotation,
            shrinkage=settings.shrinkage,
            ridge=settings.ridge,
        )


def fit_whitening(
    moments: Moments,
    k: int | None = None,
    *,
    space_id: str = "",
    rotation: Literal["pca", "zca"] = "pca",
    shrinkage: float | Literal["auto"] = 0.0,
    ridge: float = 0.0,
) -> Whitening:
    """Fit the whitening of the vectors that `moments` describes.

    Keeps the k directions of largest variance, or fewer if the vectors vary in fewer. The sign of each
    component is fixed, so that equal moments give equal bytes. Too few rows for k are not an error here; see
    `shortage`.

    Args:
        moments: moments of the vectors.
        k: number of components; None keeps all within the rank.
        space_id: id of the space of the vectors.
        rotation: "pca" returns k components. "zca" rotates them back into d dimensions, with the matrix
            W_k = U_k L_k^-1/2 U_k^T of rank k; this gives the same cosines as pca.
        shrinkage: s in the covariance (1 - s) S + s (tr S / d) I; "auto" estimates it by `oas_shrinkage`.
        ridge: proportion of the mean eigenvalue that is added to each eigenvalue. Shrinkage and ridge also
            give variance to directions in which the vectors do not vary, so that k may include them.

    Raises:
        DataError: fewer than two rows, values that are not finite, or equal rows only.
    """
    if k is not None and k < 1:
        raise DataError("whiten.k", "at least 1", str(k), "leave whiten.k out to keep every direction")
    spectrum = spectrum_of(moments)
    weight = oas_shrinkage(moments) if shrinkage == "auto" else shrinkage
    variances = (1 - weight) * spectrum.eigenvalues + (weight + ridge) * spectrum.eigenvalues.mean()
    rank = int((variances > RANK_TOLERANCE * variances[0]).sum())
    components = min(k or rank, rank)
    axes = spectrum.vectors[:, :components]
    matrix = np.ascontiguousarray((axes / np.sqrt(variances[:components])).T)  # Lambda^-1/2 U^T
    if rotation == "zca":
        matrix = axes @ matrix
    return Whitening(
        matrix.astype(np.float32),
        (-matrix @ moments.mean).astype(np.float32),
        spectrum.eigenvalues,
        rank=spectrum.rank,
        condition=spectrum.condition,
        effective_rank=spectrum.effective_rank,
        fitted_rows=moments.count,
        requested=k,
        space_id=space_id,
        kept=components if rotation == "zca" else None,
        shrinkage=weight,
        ridge=ridge,
    )


def oas_shrinkage(moments: Moments) -> float:
    """Oracle approximating shrinkage of the population covariance, in [0, 1] (Chen et al. 2010, eq. 23).

    The terms in 2 / d are omitted, as in scikit-learn.
    """
    covariance = moments.covariance()
    mean_square = float((covariance**2).mean())
    mean_variance = float(np.trace(covariance)) / moments.dim
    numerator = mean_square + mean_variance**2
    denominator = (moments.count + 1) * (mean_square - mean_variance**2 / moments.dim)
    return min(numerator / denominator, 1.0) if denominator > 0 else 1.0
