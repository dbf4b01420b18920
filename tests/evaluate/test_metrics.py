"""Metrics match scikit-learn, sentence-transformers and counting by hand."""

import numpy as np
import pytest
import pytrec_eval
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, f1_score, ndcg_score, roc_auc_score

from pipeline.evaluate.metrics import (
    average_precision,
    best_accuracy,
    best_f1,
    ndcg_at,
    recall_at,
    reciprocal_rank,
    roc_auc,
)


def sample(seed: int, *, ties: bool) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    positive = rng.random(80) < 0.4
    predicted = positive + rng.normal(size=80)
    return (predicted.round(0) if ties else predicted), positive


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_average_precision_and_auc_match_scikit_learn(seed: int, ties: bool):
    predicted, positive = sample(seed, ties=ties)
    assert average_precision(predicted, positive) == pytest.approx(
        average_precision_score(positive, predicted), abs=1e-12
    )
    assert roc_auc(predicted, positive) == pytest.approx(roc_auc_score(positive, predicted), abs=1e-12)


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=1, max_size=30))
def test_no_threshold_is_better_than_the_best_one(rows: list[tuple[int, bool]]):
    predicted, positive = np.array([float(p) for p, _ in rows]), np.array([label for _, label in rows])
    cuts = [*np.unique(predicted), np.inf]
    accuracy = best_accuracy(predicted, positive)
    assert accuracy.value == pytest.approx(max(((predicted >= cut) == positive).mean() for cut in cuts))
    assert ((predicted >= accuracy.threshold) == positive).mean() == pytest.approx(accuracy.value)
    if positive.any():
        f1 = best_f1(predicted, positive)
        assert f1.value == pytest.approx(
            max(f1_score(positive, predicted >= cut, zero_division=0) for cut in cuts)
        )
        assert f1_score(positive, predicted >= f1.threshold) == pytest.approx(f1.value)


def test_a_threshold_is_half_way_between_predictions():
    cut = best_accuracy(np.array([0.9, 0.8, 0.3]), np.array([True, True, False]))
    assert (cut.value, cut.threshold, cut.precision, cut.recall) == (1.0, pytest.approx(0.55), 1.0, 1.0)
    neighbours = np.array([np.nextafter(0.5, 1), 0.5])
    assert best_accuracy(neighbours, np.array([True, False])).threshold == neighbours[0]


def test_missed_positives_count():
    predicted, positive = np.array([3.0, 2, 1]), np.array([True, False, True])
    assert average_precision(predicted, positive, positives=4) == pytest.approx((1 + 2 / 3) / 4)
    assert best_f1(predicted, positive, positives=4).value == pytest.approx(2 * 2 / (3 + 4))
    assert best_f1(predicted, positive, positives=4).recall == 0.5


def test_metrics_of_ranks_match_a_hand_computation():
    ranks = [np.array([1]), np.array([3, 12]), np.array([50])]
    np.testing.assert_allclose(recall_at(ranks, 10), [1, 0.5, 0])
    np.testing.assert_allclose(reciprocal_rank(ranks), [1, 1 / 3, 1 / 50])
    np.testing.assert_allclose(ndcg_at(ranks, 10), [1, 0.5 / (1 + 1 / np.log2(3)), 0])


def test_ndcg_matches_scikit_learn():
    rng = np.random.default_rng(0)
    gains, scores = rng.random((20, 40)) < 0.2, rng.normal(size=(20, 40))
    gains[:, 0] = True
    rank_of = np.argsort(np.argsort(-scores, axis=1), axis=1) + 1
    ranks = [np.sort(row[gain]) for row, gain in zip(rank_of, gains, strict=True)]
    assert ndcg_at(ranks, 10).mean() == pytest.approx(ndcg_score(gains, scores, k=10), abs=1e-12)


def test_metrics_of_ranks_match_trec_eval():
    rng = np.random.default_rng(3)
    documents = [f"d{number:02d}" for number in range(40)]
    relevant, results, ranks = {}, {}, []
    for query in map(str, range(50)):
        order = rng.permutation(documents)
        chosen = rng.choice(documents, rng.integers(1, 15), replace=False)
        relevant[query] = dict.fromkeys(map(str, chosen), 1)
        results[query] = {str(name): 40.0 - index for index, name in enumerate(order)}
        ranks.append(np.flatnonzero(np.isin(order, chosen)) + 1)
    measures = {"recip_rank", "recall.10", "ndcg_cut.10"}
    theirs = pytrec_eval.RelevanceEvaluator(relevant, measures).evaluate(results)
    for name, ours in {
        "recip_rank": reciprocal_rank(ranks),
        "recall_10": recall_at(ranks, 10),
        "ndcg_cut_10": ndcg_at(ranks, 10),
    }.items():
        np.testing.assert_allclose(ours, [theirs[query][name] for query in relevant], rtol=1e-12)
