"""Transforms of frozen embeddings: fitted once, immutable, saved as safetensors. One file per transform; the registry finds it."""

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
    """y = x @ matrix.T + bias: matrix (k, d) and bias (k,), float32; what an index computes before its search."""

    matrix: np.ndarray
    bias: np.ndarray


class Transform(Protocol):
    """A fitted map of vectors. `transform_id` is the sha256 of its content; `space_id` names the space that it was fitted in."""

    kind: ClassVar[str]

    @property
    def space_id(self) -> str: ...

    @property
    def transform_id(self) -> str: ...

    @property
    def fitted_rows(self) -> int:
        """Rows of the fit."""
        ...

    @property
    def k(self) -> int:
        """Width of what comes out."""
        ...

    @property
    def shortage(self) -> str | None:
        """Why this fit must not be published, such as too few rows; None if there are enough."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know about the fit, in sentences."""
        ...

    def affine(self) -> Affine | None:
        """The map as one matrix and bias; None where it is no affine map, which an index cannot hold."""
        ...

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """(n, d_in) -> (n, k) float32."""
        ...

    def to_bytes(self) -> bytes: ...

    @classmethod
    def from_bytes(cls, content: bytes) -> Self: ...


@runtime_checkable
class FromMoments(Protocol):
    """The class of a transform whose fit needs the moments of the vectors alone: an affine map, which an index can hold, fitted in the pass that encodes."""

    @classmethod
    def of_moments(cls, moments: Moments, settings: WhitenSettings, space_id: str) -> Transform:
        """The fit of the vectors that `moments` describes; DataError where they do not carry one. settings name numbers: what is chosen on dev is chosen."""
        ...


TRANSFORMS: Registry[type[Transform]] = Registry("transform", __name__)


def load_transform(content: bytes) -> Transform:
    """The transform in a file that `Transform.to_bytes` wrote, of whatever kind; DataError if it is damaged or of an unknown kind."""
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
    """Name of the space of what a transform gives: transformed vectors compare with each other, not with raw ones."""
    return digest_of([transform.space_id, transform.transform_id])
