"""Recall counts the same neighbours as exact search by numpy."""

import numpy as np
import pytest

from pipeline.index.measure.metrics import Proportion
from pipeline.index.measure.recall import recall
from pipeline.index.measure.search_effort import set_effort
from tests.index.clustered import clustered, cosines, some_map
from tests.index.indexes import build_with_truth


@pytest.mark.parametrize(
    ("kind", "effort"),
    [("ivf_flat", 1), ("ivf_flat", 2), ("ivf_flat", 40), ("PCA8,Flat", 0), ("IVF20,SQ4", 5), ("HNSW4", 16)],
)
def test_recall_matches_numpy_without_ties(kind, effort):
    vectors = clustered(3_000)
    index, queries, truth = build_with_truth(kind, vectors)
    set_effort(index, effort)
    exact = cosines(queries.vectors, vectors.raw, some_map())
    exact[np.arange(len(queries)), np.arange(0, 3_000, 20)] = -np.inf
    for k, proportion in recall(index, queries, truth).items():
        found = index.search(queries.vectors, k + 1)[1]
        best = vectors.addresses[np.argsort(-exact, axis=1)[:, :k]]
        others = [row[row != own][:k] for row, own in zip(found, queries.addresses, strict=True)]
        hits = sum(len(np.intersect1d(a, b)) for a, b in zip(others, best, strict=True))
        assert proportion.trials == k * len(queries)
        # neighbours whose scores differ by less than 1e-6 from the k-th may be in one list only
        assert proportion.hits == pytest.approx(hits, abs=2)


def test_exhaustive_search_has_recall_one_among_many_equal_texts():
    vectors = clustered(2_000)
    vectors.raw[:1_000] = vectors.raw[0]  # far more than the margin
    vectors.raw[1_000:1_060] = vectors.raw[1_000]
    for kind in ("flat", "ivf_flat"):
        index, queries, truth = build_with_truth(kind, vectors)
        set_effort(index, 40)
        assert all(proportion.value == 1.0 for proportion in recall(index, queries, truth).values())


def test_recall_is_one_if_fewer_than_k_rows_are_all_found():
    index, queries, truth = build_with_truth("flat", clustered(6), step=1)
    proportions = recall(index, queries, truth)
    assert {k: (proportion.hits, proportion.trials) for k, proportion in proportions.items()} == {
        1: (6, 6),
        10: (30, 30),
        100: (30, 30),
    }
    index, queries, truth = build_with_truth("flat", clustered(1), step=1)
    assert recall(index, queries, truth)[10].value == 1.0


def test_correlated_answers_count_as_few_trials():
    correlated, independent = Proportion.of(50, 100, effective_trials=10), Proportion.of(5, 10)
    assert (correlated.value, correlated.low, correlated.high) == (
        independent.value,
        independent.low,
        independent.high,
    )
    index, queries, truth = build_with_truth("ivf_flat", clustered(4_000), step=8)
    set_effort(index, 2)
    measured = recall(index, queries, truth)[10]
    rng = np.random.default_rng(0)
    rates = [
        recall(index, queries[row : row + 1], truth[row : row + 1])[10].value for row in range(len(queries))
    ]
    # a bootstrap over the queries: the spread that other queries would show
    resampled = [rng.choice(rates, len(rates)).mean() for _ in range(2_000)]
    np.testing.assert_allclose(
        [measured.low, measured.high], np.quantile(resampled, [0.025, 0.975]), atol=0.01
    )
