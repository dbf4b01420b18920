"""Functions for the files of all transforms: checked vectors, content ids, headers."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self, TypeVar

import numpy as np

from pipeline.config import canonical
from pipeline.errors import DataError
from pipeline.post import Transform
from pipeline.stats.tensors import pack, unpack

T = TypeVar("T", bound="Transform | TensorFile")


def checked_vectors(x: np.ndarray, dim: int) -> np.ndarray:
    """Return x if it is (n, dim) and finite; else raise DataError."""
    if x.ndim != 2 or x.shape[1] != dim:
        raise DataError(
            "vectors to transform", f"shape (n, {dim})", str(x.shape), "use vectors of the space of the fit"
        )
    if not np.isfinite(x).all():
        raise DataError(
            "vectors to transform",
            "finite values",
            f"{int((~np.isfinite(x)).any(axis=1).sum())} rows with NaN or infinity",
            "quarantine them",
        )
    return x


def content_id(facts: Sequence[object], *tensors: np.ndarray) -> str:
    """Return the sha256 (hex) of facts and tensors, little-endian on every machine."""
    content = hashlib.sha256(canonical(list(facts)))
    for tensor in tensors:
        content.update(np.ascontiguousarray(tensor, tensor.dtype.newbyteorder("<")).tobytes())
    return content.hexdigest()


def too_few(rows: int, needed: int, purpose: str) -> str | None:
    """Return the reason why a fit on `rows` rows must not be published; None if they are enough."""
    if rows >= needed:
        return None
    return f"{rows:,} rows are too few {purpose}: at least {needed:,} are needed"


def read_fit(
    content: bytes, kind: str, tensors: Sequence[str], facts: Sequence[str]
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read the tensors and the header of a fit.

    Raises:
        DataError: the file is damaged, of another kind, or lacks a tensor or a fact.
    """
    found, header = unpack(content, *tensors, kind=kind)
    if missing := [name for name in facts if name not in header]:
        raise DataError(
            f"{kind} file",
            "a header with " + ", ".join(facts),
            f"no {', '.join(missing)}",
            "fit it again",
        )
    return found, header


def verified(transform: T, header: dict[str, Any]) -> T:
    """Return the transform if its content matches the transform_id in the header; else raise DataError."""
    if transform.transform_id != (expected := str(header.get("transform_id"))):
        raise DataError(
            f"{transform.kind} file",
            f"transform_id {expected[:12]}",
            transform.transform_id[:12],
            "the file is damaged: fit it again",
        )
    return transform


class TensorFile:
    """Base of the transforms whose file holds some of their attributes: arrays, and facts in its header."""

    kind: ClassVar[str]
    tensors: ClassVar[tuple[str, ...]]
    """names of the arrays"""
    facts: ClassVar[tuple[str, ...]]
    """names of the facts"""
    optional: ClassVar[Mapping[str, object]] = {}
    """facts that are written only if they differ from these defaults"""

    @property
    def transform_id(self) -> str:
        """sha256 (hex) of the content."""
        raise NotImplementedError

    def to_bytes(self) -> bytes:
        """Write a safetensors file; equal fits give equal bytes."""
        options = [name for name, default in self.optional.items() if getattr(self, name) != default]
        facts = (*self.facts, *options, "transform_id", "kind")
        return pack(
            {name: getattr(self, name) for name in self.tensors},
            {name: getattr(self, name) for name in facts},
        )

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Read the output of `to_bytes`.

        DataError if the file is damaged or does not match its transform_id.
        """
        tensors, header = read_fit(content, cls.kind, cls.tensors, cls.facts)
        facts = {name: header[name] for name in (*cls.facts, *cls.optional) if name in header}
        return verified(cls(**{name: tensors[name] for name in cls.tensors}, **facts), header)
