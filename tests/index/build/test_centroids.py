"""Centroids of many lists are as good as those of faiss, and rows are added to the nearest of them."""

import faiss
import numpy as np
import pytest

from pipeline.index.build.build import RowAdder, fill, train
from pipeline.index.build.centroids import CentroidGroups, sum_by_group, train_centroids
from pipeline.index.build.index_shape import plan_index
from pipeline.index.library import faiss_threads
from pipeline.index.structure import graph_of, ivf_of, set_index_effort
from pipeline.settings import IndexSettings
from pipeline.settings.index_kinds import TWO_LEVEL_LISTS
from tests.index.clustered import clustered

ROWS = 6_000
LISTS = 256


def unit_vectors(rows: int = ROWS, seed: int = 0) -> np.ndarray:
    vectors = clustered(rows, seed).raw
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def trained(kind: str, rows: int = ROWS):
    """Train an empty index on clustered vectors."""
    return train(plan_index(rows, 32, IndexSettings(kind=kind)), None, clustered(rows).raw)


def lists_of_rows(index) -> dict[int, int]:
    """Return the list of each row, by address."""
    lists = ivf_of(index).invlists
    return {
        int(address): number
        for number in range(lists.nlist)
        for address in faiss.rev_swig_ptr(lists.get_ids(number), lists.list_size(number))
    }


@pytest.mark.parametrize(("count", "proportion"), [(1, 1.0), (5, 1.0), (60, 1.0), (1_000, 0.93)])
def test_the_nearest_centroid_is_found(count, proportion):
    centroids, vectors = unit_vectors(count, seed=3), unit_vectors()
    best = np.argmax(vectors.astype(np.float64) @ centroids.T.astype(np.float64), axis=1)
    assert (CentroidGroups.of(centroids).nearest(vectors) == best).mean() >= proportion


def test_the_nearest_centroid_does_not_depend_on_threads():
    groups, vectors = CentroidGroups.of(unit_vectors(500, seed=3)), unit_vectors()
    with faiss_threads(1):
        expected = groups.nearest(vectors)
    with faiss_threads(3):
        np.testing.assert_array_equal(groups.nearest(vectors), expected)


def test_sums_of_groups_equal_those_of_numpy():
    vectors, groups = unit_vectors(50), np.arange(50) % 7
    expected = [vectors[groups == number].sum(axis=0) for number in range(9)]
    np.testing.assert_allclose(sum_by_group(vectors, groups, 9), expected, atol=1e-6)


@pytest.mark.parametrize(("rows", "count"), [(ROWS, LISTS), (300, 300), (10, 1), (40, 3)])
def test_the_wanted_number_of_centroids_is_trained_deterministically(rows, count):
    with faiss_threads(1):
        centroids = train_centroids(unit_vectors(rows), count, 4, seed=1)
        np.testing.assert_array_equal(train_centroids(unit_vectors(rows), count, 4, seed=1), centroids)
    assert centroids.shape == (count, 32)
    assert centroids.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(centroids, axis=1), 1, atol=1e-5)


def test_recall_is_not_below_that_of_an_index_which_faiss_trains_and_fills():
    vectors, queries = clustered(ROWS), clustered(400, seed=9).raw
    factory = f"IVF{LISTS}_HNSW16,Flat"
    ours = trained(factory)
    fill(ours, vectors.batches())
    theirs = faiss.index_factory(32, f"L2norm,{factory}", faiss.METRIC_INNER_PRODUCT)
    theirs.train(vectors.raw)
    theirs.add_with_ids(vectors.raw, vectors.addresses)
    exact = faiss.index_factory(32, "L2norm,IDMap2,Flat", faiss.METRIC_INNER_PRODUCT)
    exact.add_with_ids(vectors.raw, vectors.addresses)
    best = exact.search(queries, 10)[1]

    def recall(index, nprobe: int) -> float:
        ivf_of(index).nprobe = nprobe
        found = index.search(queries, 10)[1]
        return float(np.mean([len(np.intersect1d(a, b)) for a, b in zip(found, best, strict=True)]) / 10)

    for nprobe in (4, 16, 64):
        assert recall(ours, nprobe) > recall(theirs, nprobe) - 0.01


def test_a_thousand_lists_are_trained_in_two_levels_with_the_recall_of_faiss():
    vectors, queries = clustered(20_000), clustered(400, seed=9).raw
    factory = f"IVF{TWO_LEVEL_LISTS},Flat"
    plan = plan_index(20_000, 32, IndexSettings(kind=factory))
    with faiss_threads(1):
        ours = train(plan, None, vectors.raw)
        np.testing.assert_array_equal(*map(faiss.serialize_index, (ours, train(plan, None, vectors.raw))))
    one_level = train(
        plan_index(20_000, 32, IndexSettings(kind=f"IVF{TWO_LEVEL_LISTS - 1},Flat")), None, vectors.raw
    )
    exact = faiss.index_factory(32, "L2norm,IDMap2,Flat", faiss.METRIC_INNER_PRODUCT)
    for index in (ours, one_level, exact):
        index.add_with_ids(vectors.raw, vectors.addresses)
    best = exact.search(queries, 10)[1]
    for nprobe in (4, 16, 64):
        found = []
        for index in (ours, one_level):
            set_index_effort(index, nprobe)
            answers = index.search(queries, 10)[1]
            found.append(np.mean([np.isin(a, b).mean() for a, b in zip(best, answers, strict=True)]))
        assert found[0] > found[1] - 0.01


def test_a_search_of_the_graph_finds_the_nearest_lists():
    raw = np.random.default_rng(0).normal(size=(6_000, 16)).astype(np.float32)
    index = train(plan_index(6_000, 16, IndexSettings(kind="IVF2000_HNSW16,Flat")), None, raw)
    graph, rows = graph_of(index), raw[:500] / np.linalg.norm(raw[:500], axis=1, keepdims=True)
    nearest = np.argsort(-rows @ graph.reconstruct_n(0, 2_000).T, axis=1)
    for nprobe in (1, 256):
        set_index_effort(index, nprobe)
        found = graph.search(rows, nprobe)[1]
        common = [len(np.intersect1d(a, b)) for a, b in zip(found, nearest[:, :nprobe], strict=True)]
        assert np.mean(common) > 0.99 * nprobe


def test_rows_of_a_block_are_in_the_lists_that_the_graph_finds():
    vectors = clustered(ROWS)
    together, one_by_one = trained(f"IVF{LISTS}_HNSW16,SQ8"), trained(f"IVF{LISTS}_HNSW16,SQ8")
    fill(together, vectors.batches())
    one_by_one.add_with_ids(vectors.raw, vectors.addresses)
    found, expected = lists_of_rows(together), lists_of_rows(one_by_one)
    assert together.ntotal == ivf_of(together).ntotal == len(found) == ROWS
    assert np.mean([found[address] == expected[address] for address in expected]) > 0.97


def test_a_few_rows_are_added_through_the_graph():
    vectors = clustered(LISTS // 32 - 1, seed=4)
    added, expected = trained(f"IVF{LISTS}_HNSW16,SQ8"), trained(f"IVF{LISTS}_HNSW16,SQ8")
    fill(added, vectors.batches())
    expected.add_with_ids(vectors.raw, vectors.addresses)
    np.testing.assert_array_equal(faiss.serialize_index(added), faiss.serialize_index(expected))


@pytest.mark.parametrize("codes", ["Flat", "RaBitQ,Refine(SQ8)"])
def test_the_bytes_do_not_depend_on_the_batches_of_a_block(codes):
    vectors, contents = clustered(2_000), []
    for unit_rows in (500, 700):
        index = trained(f"IVF64_HNSW8,{codes}", 2_000)
        with faiss_threads(1):
            fill(index, vectors.batches(unit_rows))
        contents.append(faiss.serialize_index(index))
    np.testing.assert_array_equal(*contents)


def test_rows_of_a_refined_index_keep_their_addresses():
    vectors = clustered(2_000)
    index = trained("IVF64_HNSW8,RaBitQ,Refine(SQ8)", 2_000)
    for start in (0, 1_200):  # the second fill numbers its rows behind those of the first
        part = vectors.part(slice(start, 1_200 if start == 0 else None))
        fill(index, part.batches())
    ivf_of(index).nprobe = 64
    assert index.ntotal == 2_000
    assert (index.search(vectors.raw, 1)[1][:, 0] == vectors.addresses).mean() > 0.99


def test_an_index_without_a_graph_adds_rows_immediately():
    index = trained("ivf_flat", 2_000)
    assert graph_of(index) is None
    vectors = clustered(100)
    RowAdder(index).add(vectors.addresses, vectors.raw)
    assert index.ntotal == 100


@pytest.mark.parametrize("codes", ["SQ8", "RaBitQ,Refine(SQ8)"])
def test_codes_are_those_that_faiss_trains_on_all_rows(codes):
    index = trained(f"IVF64_HNSW8,{codes}", 2_000)
    again = faiss.deserialize_index(faiss.serialize_index(index))
    with faiss_threads(1):
        again.train(clustered(2_000).raw)  # faiss keeps the centroids
    np.testing.assert_array_equal(faiss.serialize_index(index), faiss.serialize_index(again))
