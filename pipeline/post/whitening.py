"""Whitening: an affine map after which the fitted vectors have mean 0 and covariance I. Su et al. 2021, eq. 3 to 5."""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from pipeline.config import canonical
from pipeline.errors import DataError
from pipeline.post import TRANSFORMS, Affine
from pipeline.stats.moments import Moments
from pipeline.stats.spectrum import Spectrum, spectrum_of
from pipeline.stats.tensors import pack, unpack

ROWS_PER_COMPONENT = 5      # with n rows and n - 1 components every pair has the same cosine, -1/(n - 1); at 5 rows each that has worn off
FACTS = ("rank", "condition", "effective_rank", "fitted_rows", "requested", "space_id")      # of the file's header


@TRANSFORMS.register("whitening")
@dataclass(frozen=True, eq=False)
class Whitening:
    """y = x @ matrix.T + bias: what a faiss LinearTransform computes. Fitted by `fit_whitening`.

    matrix (k, d) and bias (k,) float32; eigenvalues (d,) float64 of the covariance, largest first. rank: directions with variance.
    condition and effective_rank as `stats.spectrum.Spectrum` defines them. fitted_rows: rows of the fit. requested: the k asked for, or None.
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

    @property
    def k(self) -> int:
        """Components kept."""
        return len(self.matrix)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Whitened x: (n, d) -> (n, k) float32; DataError on another dimension."""
        if x.ndim != 2 or x.shape[1] != self.matrix.shape[1]:
            raise DataError("vectors to whiten", f"shape (n, {self.matrix.shape[1]})", str(x.shape), "use vectors of the space of the fit")
        whitened = x.astype(np.float32, copy=False) @ self.matrix.T
        whitened += self.bias
        return np.asarray(whitened)

    def affine(self) -> Affine:
        """The map itself."""
        return Affine(self.matrix, self.bias)

    @cached_property
    def transform_id(self) -> str:
        """sha256 (hex) of the map and of the space it belongs to."""
        content = hashlib.sha256(canonical([self.kind, self.space_id, *self.matrix.shape]))
        for tensor in (self.matrix, self.bias):
            content.update(np.ascontiguousarray(tensor, "<f4").tobytes())
        return content.hexdigest()

    @property
    def shortage(self) -> str | None:
        """Why this fit must not be published: fewer than five rows per component. None if there are enough."""
        if self.fitted_rows >= ROWS_PER_COMPONENT * self.k:
            return None
        return f"{self.fitted_rows:,} rows are too few to whiten {self.k} components: at least {ROWS_PER_COMPONENT * self.k:,} are needed"

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know about the fit, in sentences."""
        clamped = self.requested is not None and self.requested > self.k
        asked = f"whiten.k={self.requested} was lowered to {self.k}" if clamped else f"{self.k} of {len(self.eigenvalues)} components are kept"
        reason = f"; the vectors vary in {self.rank} of {len(self.eigenvalues)} directions only" if self.rank < len(self.eigenvalues) else ""
        return (asked + reason, *((self.shortage,) if self.shortage else ()))

    def to_bytes(self) -> bytes:
        """A safetensors file; equal fits give equal bytes."""
        tensors = {"matrix": self.matrix, "bias": self.bias, "eigenvalues": self.eigenvalues}
        return pack(tensors, {name: getattr(self, name) for name in (*FACTS, "transform_id", "kind")})

    @classmethod
    def from_bytes(cls, content: bytes) -> "Whitening":
        """What `to_bytes` wrote; DataError if the file is damaged or its content does not match its transform_id."""
        tensors, header = unpack(content, "matrix", "bias", "eigenvalues", kind=cls.kind)
        if missing := [name for name in FACTS if name not in header]:
            raise DataError("whitening file", "a header that names " + ", ".join(FACTS), f"no {', '.join(missing)}", "fit it again")
        whitening = cls(tensors["matrix"], tensors["bias"], tensors["eigenvalues"], **{name: header[name] for name in FACTS})
        if whitening.transform_id != (expected := str(header.get("transform_id"))):
            raise DataError("whitening file", f"transform_id {expected[:12]}", whitening.transform_id[:12], "the file is damaged: fit it again")
        return whitening


def fit_whitening(moments: Moments, k: int | None = None, *, space_id: str = "") -> Whitening:
    """The whitening of the vectors that `moments` describes, keeping the k directions of largest variance, at most as many as vary.

    Eigendecomposed once, in float64. k=None keeps all within the rank. The sign of each component is fixed, so equal moments give equal bytes.
    DataError with fewer than two rows, values that are not finite, or equal rows only; too few rows for k is no error here: see `shortage`.
    """
    if k is not None and k < 1:
        raise DataError("whiten.k", "at least 1", str(k), "leave it out to keep every direction")
    spectrum = spectrum_of(moments)
    matrix = _matrix(spectrum, min(k or spectrum.rank, spectrum.rank))
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
    )


def _matrix(spectrum: Spectrum, k: int) -> np.ndarray:
    """Lambda^-1/2 U^T, first k rows (k, d), float64."""
    return np.ascontiguousarray((spectrum.vectors[:, :k] / np.sqrt(spectrum.eigenvalues[:k])).T)
