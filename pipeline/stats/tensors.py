"""Small files of named arrays (safetensors) with a JSON header; equal content gives equal bytes."""

import json
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from pipeline.errors import DataError


def pack(tensors: dict[str, np.ndarray], header: dict[str, Any]) -> bytes:
    """Return the content of a safetensors file.

    The header is JSON under one metadata key, `manta`, because safetensors writes several keys in random
    order.
    """
    return save(
        # safetensors writes the underlying buffer and ignores strides.
        {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()},
        metadata={"manta": json.dumps(header, sort_keys=True)},
    )


def unpack(
    content: bytes, *names: str, kind: str | None = None
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read the tensors and the header of a file that `pack` wrote.

    Raises:
        DataError: the file is corrupt, of another kind, or lacks one of `names`.
    """
    try:
        tensors = load(content)
        size = int.from_bytes(content[:8], "little")
        header = json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["manta"])
    except (SafetensorError, KeyError, ValueError) as error:
        raise _unreadable_error(kind, f"{type(error).__name__}: {error}") from None
    if kind is not None and header.get("kind") != kind:
        raise _unreadable_error(kind, f"a file of kind {header.get('kind')!r}")
    if missing := [name for name in names if name not in tensors]:
        raise _unreadable_error(kind, f"no tensor {', '.join(missing)}")
    return tensors, header


def _unreadable_error(kind: str | None, found: str) -> DataError:
    return DataError(
        f"{kind or 'tensor'} file",
        "a safetensors file with a manta header",
        found,
        "run the stage that wrote it again",
    )
