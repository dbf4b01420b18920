"""Whitening: an affine map that gives the fitted vectors mean 0 and covariance I.

Source: Su et al. 2021, eq. 3 to 5.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np

from pipeline.errors import DataError
from pipeline.post import TRANSFORMS, Affine
from pipeline.post.files import TensorFile, checked_vectors, content_id, too_few
from pipeline.settings import WhitenSettings
from pipeline.stats.moments import Moments
from pipeline.stats.spectrum import RANK_TOLERANCE, spectrum_of

# With n rows and n - 1 components every pair has the same cosine, -1/(n - 1); 5 rows per component suffice.
ROWS_PER_COMPONENT = 5

Rotation = Literal["pca", "zca"]


@TRANSFORMS.register("whitening")
@dataclass(frozen=True, eq=False)
class Whitening(TensorFile):
    """y = x @ matrix.T + bias, as a faiss LinearTransform computes it; see `fit_whitening`.

    Attributes:
        matrix: (k, d) float32.
        bias: (k,) float32.
        eigenvalues: (d,) float64, of the covariance, largest first.
        rank: number of directions with variance.
        condition: see `stats.spectrum.Spectrum`.
        effective_rank: see `stats.spectrum.Spectrum`.
        fitted_rows: number of rows of the fit.
        requested: the k asked for, or None.
        space_id: name of the space of the fit.
        kept: for zca, whose matrix is (d, d), the number of directions that are not zero; else None.
        shrinkage: shrinkage of the covariance that was applied.
        ridge: ridge that was applied.
    """

    kind: ClassVar[str] = "whitening"
    tensors: ClassVar[tuple[str, ...]] = ("matrix", "bias", "eigenvalues")
    facts: ClassVar[tuple[str, ...]] = (
        "rank",
        "condition",
        "effective_rank",
        "fitted_rows",
        "requested",
        "space_id",
    )
    optional: ClassVar[Mapping[str, object]] = {"kept": None, "shrinkage": 0.0, "ridge": 0.0}
    matrix: np.ndarray
    bias: np.ndarray
    eigenvalues: np.ndarray
    rank: int
    condition: float
    effective_rank: float
    fitted_rows: int
    requested: int | None
    space_id: str
    kept: int | None = None
    shrinkage: float = 0.0
    ridge: float = 0.0

    @property
    def k(self) -> int:
        """Dimension of the output: the number of components, or d for zca."""
        return len(self.matrix)

    @property
    def components(self) -> int:
        """Number of directions kept."""
        return self.kept or len(self.matrix)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Whiten x (n, d): (n, k) float32; DataError for another dimension or values that are not finite."""
        whitened = checked_vectors(x, self.matrix.shape[1]).astype(np.float32, copy=False) @ self.matrix.T
        whitened += self.bias
        return np.asarray(whitened)

    def affine(self) -> Affine:
        """Return the map."""
        return Affine(self.matrix, self.bias)

    @cached_property
    def transform_id(self) -> str:
        """sha256 (hex) of the map and the name of its space."""
        return content_id([self.kind, self.space_id, *self.matrix.shape], self.matrix, self.bias)

    @property
    def shortage(self) -> str | None:
        """Reason why this fit must not be published: fewer than five rows per component; else None."""
        count = self.components
        return too_few(self.fitted_rows, ROWS_PER_COMPONENT * count, f"to whiten {count} components")

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about the fit, for reports."""
        dim = len(self.eigenvalues)
        size = f"{self.components} of {dim} components are kept"
        if self.requested is not None and self.requested > self.components:
            size = f"whiten.k={self.requested} was lowered to {self.components}"
        if self.rank < dim:
            size += f"; the vectors vary in {self.rank} of {dim} directions only"
        few = (
            f"{self.fitted_rows:,} rows are no more than the {dim} dimensions: "
            "their covariance says nothing about some directions"
        )
        shrunk = f"the covariance was shrunk to a multiple of the identity by {self.shrinkage:.4g}"
        raised = f"{self.ridge:g} of the mean eigenvalue was added to every eigenvalue"
        return (
            size,
            *([few] if self.fitted_rows <= dim else []),
            *([shrunk] if self.shrinkage > 0 else []),
            *([raised] if self.ridge > 0 else []),
            *([self.shortage] if self.shortage else []),
        )

    @classmethod
    def of_moments(cls, moments: Moments, settings: WhitenSettings, space_id: str) -> "Whitening":
        """Fit by `fit_whitening`, with the options in the settings."""
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
    rotation: Rotation = "pca",
    shrinkage: float | Literal["auto"] = 0.0,
    ridge: float = 0.0,
) -> Whitening:
    """Fit the whitening of the vectors that `moments` describes.

    Keeps the k directions of largest variance, or fewer if the vectors vary in fewer. One eigendecomposition
    in float64. The sign of each component is fixed, so that equal moments give equal bytes. Too few rows for
    k are not an error here; see `shortage`.

    Args:
        moments: of the vectors.
        k: number of components; None keeps all within the rank.
        space_id: name of the space of the vectors.
        rotation: "pca" returns k components; "zca" rotates them back, W_k = U_k L_k^-1/2 U_k^T: d dimensions
            of rank k, with the cosines of pca.
        shrinkage: s in the covariance (1 - s) S + s (tr S / d) I; "auto": see `oas_shrinkage`.
        ridge: proportion of the mean eigenvalue that is added to each eigenvalue. With shrinkage or ridge,
            directions without variance in the fit have one too, and k may include them.

    Raises:
        DataError: fewer than two rows, values that are not finite, or equal rows only.
    """
    if k is not None and k < 1:
        raise DataError("whiten.k", "at least 1", str(k), "leave whiten.k out to keep every direction")
    spectrum = spectrum_of(moments)
    drawn = oas_shrinkage(moments) if shrinkage == "auto" else shrinkage
    variances = (1 - drawn) * spectrum.eigenvalues + (drawn + ridge) * spectrum.eigenvalues.mean()
    most = int((variances > RANK_TOLERANCE * variances[0]).sum())
    components = min(k or most, most)
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
        shrinkage=drawn,
        ridge=ridge,
    )


def oas_shrinkage(moments: Moments) -> float:
    """Oracle approximating shrinkage of the population covariance, in [0, 1] (Chen et al. 2010, eq. 23).

    Without the terms in 2 / d, as in scikit-learn.
    """
    covariance = moments.covariance()
    mean_square, mean_variance = float((covariance**2).mean()), float(np.trace(covariance)) / moments.dim
    numerator = mean_square + mean_variance**2
    denominator = (moments.count + 1) * (mean_square - mean_variance**2 / moments.dim)
    return min(numerator / denominator, 1.0) if denominator > 0 else 1.0
