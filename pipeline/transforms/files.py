"""Reading and writing the files of transforms, and checks that all transforms share."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self, TypeVar

import numpy as np

from pipeline.config import canonical
from pipeline.errors import DataError
from pipeline.stats.tensors import pack, unpack
from pipeline.transforms.transform import Transform

T = TypeVar("T", bound="Transform | TensorFile")


def check_vectors(x: np.ndarray, dim: int) -> np.ndarray:
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


def content_id(header: Sequence[object], *tensors: np.ndarray) -> str:
    """Return the sha256 (hex) of a JSON header and tensors, which are hashed as little-endian bytes."""
    content = hashlib.sha256(canonical(list(header)))
    for tensor in tensors:
        content.update(np.ascontiguousarray(tensor, tensor.dtype.newbyteorder("<")).tobytes())
    return content.hexdigest()


def too_few_rows(rows: int, needed: int, purpose: str) -> str | None:
    """Return the reason why a fit on `rows` rows must not be used; None if they are enough."""
    if rows >= needed:
        return None
    return f"{rows:,} rows are too few {purpose}: at least {needed:,} are needed"


def read_fit(
    content: bytes, kind: str, tensor_fields: Sequence[str], header_fields: Sequence[str]
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read the tensors and the header of a transform's file.

    Raises:
        DataError: the file is corrupt, of another kind, or lacks one of the fields.
    """
    tensors, header = unpack(content, *tensor_fields, kind=kind)
    if missing := [name for name in header_fields if name not in header]:
        raise DataError(
            f"{kind} file",
            "a header with " + ", ".join(header_fields),
            f"no {', '.join(missing)}",
            "fit it again",
        )
    return tensors, header


def verify_id(transform: T, header: dict[str, Any]) -> T:
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
    """Base of transforms that are dataclasses whose fields are stored in one file.

    Fields that are arrays become its tensors, the others go into its header.
    """

    kind: ClassVar[str]
    tensor_fields: ClassVar[tuple[str, ...]]
    """names of the fields that are arrays"""
    header_fields: ClassVar[tuple[str, ...]]
    """names of the other fields"""
    optional_fields: ClassVar[Mapping[str, object]] = {}
    """defaults of header fields that are written only if they differ from their default"""

    @property
    def transform_id(self) -> str:
        """sha256 (hex) of the content."""
        raise NotImplementedError

    def to_bytes(self) -> bytes:
        """Return the content of the transform's file; equal fits give equal bytes."""
        options = [name for name, default in self.optional_fields.items() if getattr(self, name) != default]
        header_fields = (*self.header_fields, *options, "transform_id", "kind")
        return pack(
            {name: getattr(self, name) for name in self.tensor_fields},
            {name: getattr(self, name) for name in header_fields},
        )

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Read the output of `to_bytes`.

        Raises:
            DataError: the file is corrupt or does not match its transform_id.
        """
        tensors, header = read_fit(content, cls.kind, cls.tensor_fields, cls.header_fields)
        from_header = {
            name: header[name] for name in (*cls.header_fields, *cls.optional_fields) if name in header
        }
        from_tensors = {name: tensors[name] for name in cls.tensor_fields}
        return verify_id(cls(**from_tensors, **from_header), header)
