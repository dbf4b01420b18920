"""Exact neighbours equal those of numpy float64, however the rows are cut into batches and parts."""

import functools
import itertools

import numpy as np
import pytest

from pipeline.index.truth import NOBODY, ExactTopK, Neighbours
from tests.index.clustered import Vectors, clustered, cosines, some_map


def oracle(vectors: Vectors, step: int, transform, keep: int) -> tuple[np.ndarray, np.ndarray]:
    scores = cosines(vectors.raw[::step], vectors.raw, transform)
    scores[np.arange(len(scores)), np.arange(0, len(vectors.raw), step)] = -np.inf         # a query is not its own answer
    order = np.argsort(-scores, axis=1)[:, :keep]
    return vectors.addresses[order], np.take_along_axis(scores, order, axis=1)


@pytest.mark.parametrize("transform", [None, some_map()])
def test_neighbours_equal_those_of_numpy(transform):
    vectors = clustered(3_000)
    found = ExactTopK(vectors.queries(60), transform, keep=40).of(vectors.batches())
    addresses, scores = oracle(vectors, 60, transform, 40)
    np.testing.assert_allclose(found.scores, scores, atol=1e-6)
    assert (found.addresses == addresses).mean() > 0.999            # float32 may swap two of nearly equal score


@pytest.mark.parametrize("cuts", [[1], [1_500], [10, 11, 2_900]])
def test_parts_merge_to_the_whole(cuts):
    vectors = clustered(3_000)
    fold = ExactTopK(vectors.queries(100), some_map(), keep=20)
    whole = fold.of(vectors.batches(3_000))
    ends = [0, *cuts, 3_000]
    parts = [fold.of(vectors.part(slice(*pair)).batches(700)) for pair in itertools.pairwise(ends)]
    for order in (parts, parts[::-1]):
        merged = functools.reduce(fold.merge, order)
        np.testing.assert_array_equal(merged.addresses, whole.addresses)
        np.testing.assert_allclose(merged.scores, whole.scores, atol=1e-6)


def test_equal_rows_are_ordered_by_address_and_missing_ones_are_nobody():
    vectors = clustered(5)
    vectors.raw[:] = vectors.raw[0]
    found = ExactTopK(vectors.queries(1), keep=10).of(vectors.batches(2))
    assert isinstance(found, Neighbours)
    assert found.addresses[2].tolist() == [0, 1, 3, 4] + 6 * [NOBODY]
    assert np.isneginf(found.scores[:, 4:]).all()


def test_no_rows_leave_nobody():
    fold = ExactTopK(clustered(10).queries(2), keep=3)
    assert (fold.of([]).addresses == NOBODY).all()
