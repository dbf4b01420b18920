"""Exact neighbours equal those of numpy float64, however the rows are divided into batches and parts."""

import functools
import itertools

import numpy as np
import pytest

from pipeline.index.measure.truth import NO_NEIGHBOUR, ExactTopK, KnownRanking, Neighbours, carry_over
from tests.index.clustered import Vectors, clustered, cosines, some_map


def oracle(vectors: Vectors, step: int, transform, keep: int) -> tuple[np.ndarray, np.ndarray]:
    """Rank all rows by numpy in float64."""
    scores = cosines(vectors.raw[::step], vectors.raw, transform)
    scores[
        np.arange(len(scores)), np.arange(0, len(vectors.raw), step)
    ] = -np.inf  # a query is not its own answer
    order = np.argsort(-scores, axis=1)[:, :keep]
    return vectors.addresses[order], np.take_along_axis(scores, order, axis=1)


@pytest.mark.parametrize("transform", [None, some_map()])
def test_neighbours_match_numpy(transform):
    vectors = clustered(3_000)
    found = ExactTopK(vectors.queries(60), transform, keep=40).search(vectors.batches())
    addresses, scores = oracle(vectors, 60, transform, 40)
    np.testing.assert_allclose(found.scores, scores, atol=1e-6)
    assert (found.addresses == addresses).mean() > 0.999  # float32 may swap two rows with nearly equal scores


@pytest.mark.parametrize("cuts", [[1], [1_500], [10, 11, 2_900]])
def test_neighbours_of_parts_merge_to_those_of_the_whole(cuts):
    vectors = clustered(3_000)
    exact = ExactTopK(vectors.queries(100), some_map(), keep=20)
    whole = exact.search(vectors.batches(3_000))
    ends = [0, *cuts, 3_000]
    parts = [exact.search(vectors.part(slice(*pair)).batches(700)) for pair in itertools.pairwise(ends)]
    for order in (parts, parts[::-1]):
        merged = functools.reduce(exact.merge, order)
        np.testing.assert_array_equal(merged.addresses, whole.addresses)
        np.testing.assert_allclose(merged.scores, whole.scores, atol=1e-6)


def test_ties_are_ordered_by_address_and_missing_neighbours_are_minus_one():
    vectors = clustered(5)
    vectors.raw[:] = vectors.raw[0]
    found = ExactTopK(vectors.queries(1), keep=10).search(vectors.batches(2))
    assert isinstance(found, Neighbours)
    assert found.addresses[2].tolist() == [0, 1, 3, 4] + 6 * [NO_NEIGHBOUR]
    assert np.isneginf(found.scores[:, 4:]).all()


def test_without_rows_there_are_no_neighbours():
    exact = ExactTopK(clustered(10).queries(2), keep=3)
    assert (exact.search([]).addresses == NO_NEIGHBOUR).all()


@pytest.mark.parametrize("seed", range(4))
def test_incrementally_updated_rankings_equal_recomputed_ones(seed):
    """Carried rankings are exact to their last rank; if one is shorter than rank 10, all rows are searched.

    The rows that are queries are deleted, too.
    """
    vectors, rng = clustered(2_000, seed), np.random.default_rng(seed)
    exact, live, scans = ExactTopK(vectors.queries(40), some_map(), keep=16), np.arange(2_000) < 800, 0
    truth = exact.search([(vectors.addresses[live], vectors.raw[live])])
    for night in range(12):
        after = live & (rng.random(2_000) > 0.05)
        after[800 + 100 * night : 800 + 100 * (night + 1)] = rng.random(100) > 0.3
        new = after & ~live
        added = KnownRanking(
            exact.search([(vectors.addresses[new], vectors.raw[new])]), new.sum() - new[::40]
        )
        truth = carry_over(
            exact,
            KnownRanking(truth, live.sum() - live[::40]),
            np.isin(truth.addresses, vectors.addresses[after]),
            added,
        )
        whole = exact.search([(vectors.addresses[after], vectors.raw[after])])
        is_known = truth.addresses != NO_NEIGHBOUR
        np.testing.assert_array_equal(truth.addresses[is_known], whole.addresses[is_known])
        np.testing.assert_allclose(truth.scores[is_known], whole.scores[is_known], atol=1e-6)
        known = KnownRanking(truth, after.sum() - after[::40])
        np.testing.assert_array_equal(known.reaches(10), is_known[:, :10].all(axis=1))
        if not known.reaches(10).all():
            truth, scans = whole, scans + 1
        live = after
    assert 0 < scans < 12


def test_rankings_of_few_rows_are_complete():
    vectors = clustered(60)
    exact, first = ExactTopK(vectors.queries(10), keep=128), vectors.part(slice(0, 20))
    own = np.arange(6) * 10
    before, after = exact.search(first.batches()), exact.search([(vectors.addresses[5:], vectors.raw[5:])])
    new = vectors.part(slice(20, 60))
    added = KnownRanking(exact.search(new.batches()), 40 - (own >= 20))
    carried = carry_over(
        exact, KnownRanking(before, 20 - (own < 20)), ~np.isin(before.addresses, vectors.addresses[:5]), added
    )
    np.testing.assert_array_equal(carried.addresses, after.addresses)
    assert KnownRanking(carried, 55 - (own >= 5)).reaches(100).all()


def test_a_merged_ranking_is_as_long_as_the_shorter_known_one():
    exact = ExactTopK(clustered(1).queries(1), keep=3)
    before = KnownRanking(
        Neighbours(np.array([[10, 11, 12]]), np.array([[0.9, 0.8, 0.7]], np.float32)), np.array([50])
    )
    added = KnownRanking(
        Neighbours(np.array([[20, 21, NO_NEIGHBOUR]]), np.array([[0.85, 0.1, -np.inf]], np.float32)),
        np.array([2]),
    )
    carried = carry_over(exact, before, np.array([[True, False, False]]), added)
    assert carried.addresses.tolist() == [[10, 20, NO_NEIGHBOUR]]  # unlisted rows may come before 21
