"""On a GPU an index is trained and filled to the answers of CPUs. `pytest -s -n 0 tests/gpu/test_index.py`
prints the time of each step on both.
"""

import time
from collections.abc import Callable
from typing import TypeVar

import faiss
import numpy as np
import pytest

from pipeline.index.build import fill, train
from pipeline.index.effort import set_effort
from pipeline.index.gpu import sees_gpus
from pipeline.index.plan import plan_index
from pipeline.index.recall import recall
from pipeline.index.truth import ExactTopK, Neighbours, Queries
from pipeline.settings import IndexSettings
from tests.index.clustered import clustered

pytestmark = pytest.mark.skipif(not sees_gpus(), reason="faiss sees no GPU")
ROWS, DIM, LISTS, NPROBE = 200_000, 32, 512, 8
KINDS = ["ivf_flat", "ivf_sq8", "opq_ivf_pq", f"IVF{LISTS}_HNSW32,RaBitQ,Refine(SQ8)"]
Result = TypeVar("Result")


@pytest.fixture(scope="module")
def queries() -> Queries:
    vectors = clustered(ROWS)
    return Queries(vectors.addresses[::400], vectors.raw[::400])


@pytest.fixture(scope="module")
def exact(queries: Queries) -> Neighbours:
    return ExactTopK(queries).search(clustered(ROWS).batches())


def timed(name: str, work: Callable[[], Result]) -> Result:
    start = time.perf_counter()
    result = work()
    print(f"{name}: {time.perf_counter() - start:.2f} s")
    return result


def test_exact_neighbours_are_those_of_the_cpu(queries: Queries, exact: Neighbours):
    timed("neighbours, CPU", lambda: ExactTopK(queries).search(clustered(ROWS).batches()))
    found = timed(
        "neighbours, GPU", lambda: ExactTopK(queries, on_gpu=True).search(clustered(ROWS).batches())
    )
    np.testing.assert_allclose(found.scores, exact.scores, atol=1e-5)
    assert (found.addresses == exact.addresses).mean() > 0.99  # neighbours with almost equal scores


@pytest.mark.parametrize("kind", KINDS)
def test_an_index_of_a_gpu_answers_on_the_cpu_as_well_as_one_of_a_cpu(
    kind: str, queries: Queries, exact: Neighbours
):
    plan = plan_index(ROWS, DIM, IndexSettings(kind=kind, nlist=LISTS))
    vectors, found = clustered(ROWS), []
    for on_gpu in (False, True):
        device = "GPU" if on_gpu else "CPU"
        index = timed(
            f"{kind}, train, {device}",
            lambda on_gpu=on_gpu: train(plan, None, vectors.raw[: plan.train_rows], on_gpu=on_gpu),
        )
        timed(
            f"{kind}, add, {device}",
            lambda index=index, on_gpu=on_gpu: fill(index, vectors.batches(), on_gpu=on_gpu),
        )
        assert faiss.deserialize_index(faiss.serialize_index(index)).ntotal == ROWS  # a file for the CPU
        set_effort(index, NPROBE)
        found.append(recall(index, queries, exact, (10,))[10].value)
    print(f"{kind}: recall@10 {found[0]:.4f} on the CPU, {found[1]:.4f} on the GPU")
    assert abs(found[0] - found[1]) < 0.02
