"""Memory that is reserved for rows changes no byte of an index, and no array is copied while it grows."""

import re
from collections.abc import Callable
from pathlib import Path

import faiss
import numpy as np
import psutil
import pytest

from pipeline.index.build.build import fill, train
from pipeline.index.build.index_shape import plan_index
from pipeline.settings import IndexSettings
from tests.index.build.test_build import KINDS, filled_index

_DIM, _ROWS, _BATCH = 256, 33_000, 1_000


@pytest.mark.parametrize("kind", KINDS)
def test_an_index_has_the_same_bytes_however_many_rows_are_reserved(kind: str):
    more = [(np.arange(2_000, 2_700), np.random.default_rng(3).normal(size=(700, 32)).astype(np.float32))]
    contents = []
    for reserved in (0, 1, 5_000):
        index, _, _ = filled_index(kind)
        fill(index, more, rows=reserved)
        contents.append(faiss.serialize_index(index))
    np.testing.assert_array_equal(contents[1], contents[0])
    np.testing.assert_array_equal(contents[2], contents[0])


def peak_bytes(work: Callable[[], object]) -> int:
    """Return the peak of this process's memory during the work, above that at the beginning."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    before = psutil.Process().memory_info().rss
    work()
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return 1024 * int(found[1]) - before


@pytest.mark.parametrize("kind", ["flat", "HNSW2"])
def test_a_growing_index_takes_its_size_of_memory_and_not_twice_as_much(kind: str):
    vectors = np.random.default_rng(0).normal(size=(_BATCH, _DIM)).astype(np.float32)
    plan = plan_index(_ROWS, _DIM, IndexSettings(kind=kind))
    size = _ROWS * (4 * _DIM + 8)

    def fill_with(reserved: int) -> None:
        numbers = range(0, _ROWS, _BATCH)
        batches = ((np.arange(start, start + _BATCH), vectors) for start in numbers)
        fill(train(plan, None, vectors), batches, rows=reserved)

    assert peak_bytes(lambda: fill_with(_ROWS)) < 1.4 * size
    assert peak_bytes(lambda: fill_with(0)) > 1.7 * size, "an array of 32,000 rows is full and copied"
