"""Threads of faiss."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from pipeline.index.library import faiss

Item = TypeVar("Item")
Result = TypeVar("Result")


@contextmanager
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
