"""Whitening: an affine map after which the fitted vectors have mean 0 and covariance I. Su et al. 2021, eq. 3 to 5."""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np

from pipeline.errors import DataError
from pipeline.post import TRANSFORMS, Affine
from pipeline.post.files import checked_vectors, content_id, read_fit, verified
from pipeline.settings import WhitenSettings
from pipeline.stats.moments import Moments
from pipeline.stats.spectrum import RANK_TOLERANCE, spectrum_of
from pipeline.stats.tensors import pack

ROWS_PER_COMPONENT = 5  # with n rows and n - 1 components every pair has the same cosine, -1/(n - 1); at 5 rows each that has worn off
FACTS = (
    "rank",
    "condition",
    "effective_rank",
    "fitted_rows",
    "requested",
    "space_id",
)  # of the file's header
OPTIONS = {
    "kept": None,
    "shrinkage": 0.0,
    "ridge": 0.0,
}  # in the header where they are not these: a plain fit is the file that it always was

Rotation = Literal["pca", "zca"]


@TRANSFORMS.register("whitening")
@dataclass(frozen=True, eq=False)
class Whitening:
    """y = x @ matrix.T + bias: what a faiss LinearTransform computes. Fitted by `fit_whitening`.

    matrix (k, d) and bias (k,) float32; eigenvalues (d,) float64 of the covariance, largest first. rank: directions with variance.
    condition and effective_rank as `stats.spectrum.Spectrum` defines them. fitted_rows: rows of the fit. requested: the k asked for, or None.
    kept: of a zca matrix, which is (d, d), the directions that it has not set to zero. shrinkage and ridge: as applied to the eigenvalues.
    """

    kind: ClassVar[str] = "whitening"
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
        """Width of what comes out: the components kept, or d where zca has turned them back to the old axes."""
        return len(self.matrix)

    @property
    def components(self) -> int:
        """Directions kept."""
        return self.kept or len(self.matrix)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Whitened x: (n, d) -> (n, k) float32; DataError on another dimension, or a value that is not finite."""
        whitened = checked_vectors(x, self.matrix.shape[1]).astype(np.float32, copy=False) @ self.matrix.T
        whitened += self.bias
        return np.asarray(whitened)

    def affine(self) -> Affine:
        """The map itself."""
        return Affine(self.matrix, self.bias)

    @cached_property
    def transform_id(self) -> str:
        """sha256 (hex) of the map and of the space it belongs to."""
        return content_id([self.kind, self.space_id, *self.matrix.shape], self.matrix, self.bias)

    @property
    def shortage(self) -> str | None:
        """Why this fit must not be published: fewer than five rows per component. None if there are enough."""
        if self.fitted_rows >= ROWS_PER_COMPONENT * self.components:
            return None
        return f"{self.fitted_rows:,} rows are too few to whiten {self.components} components: at least {ROWS_PER_COMPONENT * self.components:,} are needed"

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know about the fit, in sentences."""
        dim, clamped = len(self.eigenvalues), self.requested is not None and self.requested > self.components
        asked = (
            f"whiten.k={self.requested} was lowered to {self.components}"
            if clamped
            else f"{self.components} of {dim} components are kept"
        )
        reason = f"; the vectors vary in {self.rank} of {dim} directions only" if self.rank < dim else ""
        told = (
            (
                f"{self.fitted_rows:,} rows are no more than the {dim} dimensions: their covariance says nothing about some directions",
                self.fitted_rows <= dim,
            ),
            (
                f"the covariance was drawn to a multiple of the identity by {self.shrinkage:.4g}",
                self.shrinkage > 0,
            ),
            (f"{self.ridge:g} of the mean eigenvalue was added to every eigenvalue", self.ridge > 0),
            (self.shortage or "", self.shortage is not None),
        )
        return (asked + reason, *(sentence for sentence, is_so in told if is_so))

    def to_bytes(self) -> bytes:
        """A safetensors file; equal fits give equal bytes."""
        tensors = {"matrix": self.matrix, "bias": self.bias, "eigenvalues": self.eigenvalues}
        options = [name for name, default in OPTIONS.items() if getattr(self, name) != default]
        return pack(
            tensors, {name: getattr(self, name) for name in (*FACTS, *options, "transform_id", "kind")}
        )

    @classmethod
    def from_bytes(cls, content: bytes) -> "Whitening":
        """What `to_bytes` wrote; DataError if the file is damaged or its content does not match its transform_id."""
        tensors, header = read_fit(content, cls.kind, ("matrix", "bias", "eigenvalues"), FACTS)
        facts = {name: header[name] for name in (*FACTS, *OPTIONS) if name in header}
        return verified(cls(tensors["matrix"], tensors["bias"], tensors["eigenvalues"], **facts), header)

    @classmethod
    def of_moments(cls, moments: Moments, settings: WhitenSettings, space_id: str) -> "Whitening":
        """As `fit_whitening`, by the settings."""
        k = settings.k if isinstance(settings.k, int) else None
        return fit_whitening(
            moments,
            k,
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
    """The whitening of the vectors that `moments` describes, keeping the k directions of largest variance, at most as many as vary.

    Eigendecomposed once, in float64. k=None keeps all within the rank. The sign of each component is fixed, so equal moments give equal bytes.
    rotation: pca gives k components; zca turns them back, W_k = U_k L_k^-1/2 U_k^T: d dimensions of which k carry something, with the cosines of pca.
    shrinkage: how far the covariance is drawn to its scaled identity, (1 - s) S + s (tr S / d) I; auto: `oas_shrinkage`. ridge: share of the mean
    eigenvalue added to each. With either, directions that do not vary in the fit have a variance too, and k may reach them.
    DataError with fewer than two rows, values that are not finite, or equal rows only; too few rows for k is no error here: see `shortage`.
    """
    if k is not None and k < 1:
        raise DataError("whiten.k", "at least 1", str(k), "leave it out to keep every direction")
    spectrum = spectrum_of(moments)
    drawn = oas_shrinkage(moments) if shrinkage == "auto" else shrinkage
    variances = _regularised(spectrum.eigenvalues, drawn, ridge)
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
    """Oracle approximating shrinkage of the population covariance (Chen et al. 2010, eq. 23), without its terms in 2 / d, as scikit-learn has it: 0 to 1."""
    covariance = moments.covariance()
    mean_square, mean_variance = float((covariance**2).mean()), float(np.trace(covariance)) / moments.dim
    share = mean_square + mean_variance**2
    spread = (moments.count + 1) * (mean_square - mean_variance**2 / moments.dim)
    return min(share / spread, 1.0) if spread > 0 else 1.0


def _regularised(eigenvalues: np.ndarray, shrinkage: float, ridge: float) -> np.ndarray:
    mean = eigenvalues.mean()
    return np.asarray((1 - shrinkage) * eigenvalues + (shrinkage + ridge) * mean)
