"""Removal of the directions that all vectors share. All-but-the-top: Mu & Viswanath 2018, algorithm 1; without centring: Arora et al. 2017 (SIF), algorithm 1."""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from pipeline.errors import DataError
from pipeline.post import TRANSFORMS, Affine
from pipeline.post.files import checked_vectors, content_id, read_fit, verified
from pipeline.settings import WhitenSettings
from pipeline.stats.moments import Moments
from pipeline.stats.spectrum import spectrum_of, uncentred_spectrum_of
from pipeline.stats.tensors import pack

ROWS_PER_DIRECTION = 5  # as for whitening: directions of fewer rows are those rows
FACTS = ("centred", "share", "fitted_rows", "space_id")


@TRANSFORMS.register("components")
@dataclass(frozen=True, eq=False)
class Components:
    """y = c - sum_i u_i u_i^T c with c = x - mean. Fitted by `fit_components`.

    mean (d,) float64, zero where `centred` is false; directions u (n, d) float64, orthonormal. share: of the variance (of the mean square length, where
    not centred) that goes with them.
    """

    kind: ClassVar[str] = "components"
    mean: np.ndarray
    directions: np.ndarray
    centred: bool
    share: float
    fitted_rows: int
    space_id: str

    @property
    def k(self) -> int:
        """As many dimensions as went in: what is removed leaves zeros, not columns."""
        return len(self.mean)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """(n, d) -> (n, d) float32; DataError on another dimension, or a value that is not finite."""
        centred = checked_vectors(x, self.k) - self.mean
        return np.asarray((centred - (centred @ self.directions.T) @ self.directions).astype(np.float32))

    def affine(self) -> Affine:
        """I - sum_i u_i u_i^T, and what it makes of -mean."""
        matrix = np.eye(self.k) - self.directions.T @ self.directions
        return Affine(matrix.astype(np.float32), (-matrix @ self.mean).astype(np.float32))

    @cached_property
    def transform_id(self) -> str:
        """sha256 (hex) of mean and directions, and of the space they belong to."""
        return content_id([self.kind, self.space_id, *self.directions.shape], self.mean, self.directions)

    @property
    def shortage(self) -> str | None:
        """Why this fit must not be published: fewer than five rows per direction. None if there are enough."""
        needed = ROWS_PER_DIRECTION * len(self.directions)
        return (
            None
            if self.fitted_rows >= needed
            else f"{self.fitted_rows:,} rows are too few to find {len(self.directions)} directions: at least {needed:,} are needed"
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What was removed."""
        directions = f"{len(self.directions)} direction{'s' if len(self.directions) != 1 else ''}"
        kind, carried = ("principal", "variance") if self.centred else ("singular", "mean square length")
        removed = f"{directions.replace(' ', f' {kind} ')} removed, with {self.share:.1%} of the {carried}"
        return (removed, *((self.shortage,) if self.shortage else ()))

    def to_bytes(self) -> bytes:
        """A safetensors file; equal fits give equal bytes."""
        return pack(
            {"mean": self.mean, "directions": self.directions},
            {name: getattr(self, name) for name in (*FACTS, "transform_id", "kind")},
        )

    @classmethod
    def from_bytes(cls, content: bytes) -> "Components":
        """What `to_bytes` wrote; DataError if the file is damaged or its content does not match its transform_id."""
        tensors, header = read_fit(content, cls.kind, ("mean", "directions"), FACTS)
        return verified(
            cls(tensors["mean"], tensors["directions"], **{name: header[name] for name in FACTS}), header
        )

    @classmethod
    def of_moments(cls, moments: Moments, settings: WhitenSettings, space_id: str) -> "Components":
        """As `fit_components`, by the settings."""
        count = settings.remove if isinstance(settings.remove, int) else 1
        return fit_components(moments, count, centred=settings.centred, space_id=space_id)


def fit_components(
    moments: Moments, count: int = 1, *, centred: bool = True, space_id: str = ""
) -> Components:
    """The removal of the first `count` directions of the vectors that `moments` describes.

    centred: the mean goes too, and directions are the principal ones; else they are the first right singular vectors of the vectors as they are.
    DataError with fewer than two rows, values that are not finite, equal rows only, or when no direction would be left.
    """
    spectrum = spectrum_of(moments) if centred else uncentred_spectrum_of(moments)
    if not 0 <= count < spectrum.rank:
        found = f"{count}, and the vectors span {spectrum.rank} direction{'s' if spectrum.rank > 1 else ''}"
        raise DataError(
            "whiten.remove", f"0 to {spectrum.rank - 1}", found, "remove fewer, or give more text"
        )
    share = float(spectrum.eigenvalues[:count].sum() / spectrum.eigenvalues.sum())
    directions = np.ascontiguousarray(spectrum.vectors[:, :count].T)
    return Components(
        moments.mean if centred else np.zeros(moments.dim),
        directions,
        centred,
        share,
        moments.count,
        space_id,
    )
