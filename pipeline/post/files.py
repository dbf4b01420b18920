"""What the files of all transforms share: checked vectors, a digest of content, a header that names its facts."""

import hashlib
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from pipeline.config import canonical
from pipeline.errors import DataError
from pipeline.post import Transform
from pipeline.stats.tensors import unpack

T = TypeVar("T", bound=Transform)


def checked_vectors(x: np.ndarray, dim: int) -> np.ndarray:
    """x, if it is (n, dim) and finite; else DataError."""
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
    """sha256 (hex) of facts and tensors, little-endian whatever the machine."""
    content = hashlib.sha256(canonical(list(facts)))
    for tensor in tensors:
        content.update(np.ascontiguousarray(tensor, tensor.dtype.newbyteorder("<")).tobytes())
    return content.hexdigest()


def read_fit(
    content: bytes, kind: str, tensors: Sequence[str], facts: Sequence[str]
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Tensors and header of a fit of that kind; DataError if the file is damaged, of another kind, or lacks one of them."""
    found, header = unpack(content, *tensors, kind=kind)
    if missing := [name for name in facts if name not in header]:
        raise DataError(
            f"{kind} file",
            "a header that names " + ", ".join(facts),
            f"no {', '.join(missing)}",
            "fit it again",
        )
    return found, header


def verified(transform: T, header: dict[str, Any]) -> T:
    """The transform, if its content has the transform_id of its file's header; else DataError."""
    if transform.transform_id != (expected := str(header.get("transform_id"))):
        raise DataError(
            f"{transform.kind} file",
            f"transform_id {expected[:12]}",
            transform.transform_id[:12],
            "the file is damaged: fit it again",
        )
    return transform
