"""The protocol of transforms, their registry, and `load_transform`."""

from dataclasses import dataclass
from typing import ClassVar, Protocol, Self, runtime_checkable

import numpy as np

from pipeline.config import digest_of
from pipeline.errors import ConfigError, DataError
from pipeline.registry import Registry
from pipeline.settings import WhitenSettings
from pipeline.stats.moments import Moments
from pipeline.stats.tensors import unpack


@dataclass(frozen=True, eq=False)
class Affine:
    """Affine map y = x @ matrix.T + bias, which a faiss index can apply to vectors and queries."""

    matrix: np.ndarray
    """(k, d) float32"""
    bias: np.ndarray
    """(k,) float32"""


class Transform(Protocol):
    """A fitted map of vectors."""

    kind: ClassVar[str]

    @property
    def space_id(self) -> str:
        """Id of the space of the vectors that the transform was fitted to."""

    @property
    def transform_id(self) -> str:
        """sha256 (hex) of the transform's content."""

    @property
    def fitted_rows(self) -> int:
        """Number of rows that the transform was fitted on."""

    @property
    def k(self) -> int:
        """Dimension of the output."""

    @property
    def shortage(self) -> str | None:
        """Reason why the transform must not be used, if it was fitted on too few rows; None otherwise."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about the fit, for reports."""

    def affine(self) -> Affine | None:
        """Return the map as a matrix and a bias; None if it is not affine, so that no index can hold it."""

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Transform x (n, d): (n, k) float32."""

    def to_bytes(self) -> bytes:
        """Return the content of the transform's file; equal fits give equal bytes."""

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Read the output of `to_bytes`; raise DataError if it is corrupt."""


@runtime_checkable
class FromMoments(Protocol):
    """Class of a transform that can be fitted from moments alone, without another pass over the vectors.

    Such a transform is affine, so that an index can hold it.
    """

    @classmethod
    def of_moments(cls, moments: Moments, settings: WhitenSettings, space_id: str) -> Transform:
        """Fit the transform on the vectors that `moments` describes.

        Settings that can be tuned, such as `k`, must already be numbers; see `choose.tune_transform`.

        Raises:
            DataError: the vectors do not allow a fit.
        """


TRANSFORMS: Registry[type[Transform]] = Registry("transform", "pipeline.transforms")


def load_transform(content: bytes) -> Transform:
    """Read a transform of any kind from the content of its file.

    Raises:
        DataError: the file is corrupt or of an unknown kind.
    """
    _, header = unpack(content)
    try:
        kind = TRANSFORMS[str(header.get("kind"))]
    except ConfigError as error:
        raise DataError(
            "transform file",
            error.expected,
            str(header.get("kind")),
            "use the version of manta that wrote it",
        ) from None
    return kind.from_bytes(content)


def space_after(transform: Transform) -> str:
    """Return the id of the space of transformed vectors, which are not comparable with raw ones."""
    return digest_of([transform.space_id, transform.transform_id])
