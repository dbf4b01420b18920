"""The path of an index over GPUs, with indexes on the CPU in their place: the results are those of CPUs."""

import faiss
import numpy as np
import pytest

from pipeline.errors import ConfigError
from pipeline.index.build.build import fill, train
from pipeline.index.build.index_shape import plan_index
from pipeline.index.gpu import check_gpus
from pipeline.index.library import faiss_threads
from pipeline.index.measure.truth import ExactTopK, Queries
from pipeline.index.structure import ivf_of
from pipeline.settings import IndexSettings
from tests.index.clustered import clustered

ROWS, LISTS = 3_000, 64
GRAPH = f"IVF{LISTS}_HNSW8"
LISTED = ["ivf_flat", "ivf_sq8", f"{GRAPH},Flat", f"{GRAPH},RaBitQ,Refine(SQ8)"]


@pytest.fixture(autouse=True)
def copied(monkeypatch: pytest.MonkeyPatch) -> list[faiss.Index]:
    """Let faiss see a GPU, and return the list of indexes that are copied to it, which stay on the CPU."""
    found: list[faiss.Index] = []

    def copy_to_gpus(index: faiss.Index) -> faiss.Index:
        found.append(index)
        return index

    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 1)
    monkeypatch.setattr(faiss, "index_cpu_to_all_gpus", copy_to_gpus)
    return found


def trained(kind: str, *, on_gpu: bool) -> faiss.Index:
    plan = plan_index(ROWS, 32, IndexSettings(kind=kind, nlist=LISTS))
    with faiss_threads(1):
        return train(plan, None, clustered(ROWS).raw, on_gpu=on_gpu)


def lists_of(index: faiss.Index) -> np.ndarray:
    """Return the list of each row, by its number in the order of adding."""
    lists, found = ivf_of(index).invlists, np.zeros(ROWS, np.int64)
    for number in range(LISTS):
        if size := lists.list_size(number):
            found[faiss.rev_swig_ptr(lists.get_ids(number), size)] = number
    return found


@pytest.mark.parametrize(("kind", "indexes"), [*((kind, 1) for kind in LISTED), ("opq_ivf_pq", 3)])
def test_training_compares_vectors_on_the_gpu_and_gives_the_same_bytes(
    kind: str, indexes: int, copied: list[faiss.Index]
):
    """OPQ, lists and codes of a product quantizer are trained one after the other."""
    expected = faiss.serialize_index(trained(kind, on_gpu=False))
    assert not copied
    found = faiss.serialize_index(trained(kind, on_gpu=True))
    np.testing.assert_array_equal(found, expected)
    assert len(copied) >= indexes


@pytest.mark.parametrize("kind", ["ivf_flat", "ivf_sq8"])
def test_rows_are_added_to_the_same_bytes(kind: str, copied: list[faiss.Index]):
    contents = []
    for on_gpu in (False, True):
        index = trained(kind, on_gpu=False)
        with faiss_threads(1):
            assert fill(index, clustered(ROWS).batches(), on_gpu=on_gpu).rows == index.ntotal == ROWS
        contents.append(faiss.serialize_index(index))
    np.testing.assert_array_equal(*contents)
    assert len(copied) == 1


@pytest.mark.parametrize("codes", ["Flat", "RaBitQ,Refine(SQ8)"])
def test_of_many_lists_each_row_gets_the_nearest(codes: str):
    index, vectors = trained(f"{GRAPH},{codes}", on_gpu=False), clustered(ROWS)
    numbered = ((np.arange(len(rows)) + start, rows) for start, (_, rows) in _numbered(vectors.batches()))
    fill(index, numbered, on_gpu=True)
    centroids = faiss.downcast_index(ivf_of(index).quantizer).reconstruct_n(0, LISTS)
    lengths = np.linalg.norm(vectors.raw, axis=1, keepdims=True)
    nearest = np.argmax(vectors.raw / lengths @ centroids.T, axis=1)
    assert (lists_of(index) == nearest).mean() > 0.999  # ties by rounding


def _numbered(batches):
    start = 0
    for batch in batches:
        yield start, batch
        start += len(batch[0])


def test_kinds_without_lists_are_filled_as_on_a_cpu(copied: list[faiss.Index]):
    index = trained("hnsw", on_gpu=True)
    fill(index, clustered(200).batches(), on_gpu=True)
    assert index.ntotal == 200
    assert not copied


def test_exact_neighbours_are_the_same_and_one_index_serves_all_batches(copied: list[faiss.Index]):
    vectors = clustered(ROWS)
    queries = Queries(vectors.addresses[::100], vectors.raw[::100])
    expected = ExactTopK(queries).search(vectors.batches())
    on_gpu = ExactTopK(queries, on_gpu=True)
    found = on_gpu.empty()
    for batch in vectors.batches():  # as while they are added
        found = on_gpu.merge(found, on_gpu.search([batch]))
    np.testing.assert_array_equal(found.addresses, expected.addresses)
    np.testing.assert_array_equal(found.scores, expected.scores)
    assert len(copied) == 1


def test_a_worker_without_a_gpu_of_faiss_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch):
    check_gpus()
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 0)
    with pytest.raises(ConfigError, match=r"cluster\.index_gpus=0"):
        check_gpus()
