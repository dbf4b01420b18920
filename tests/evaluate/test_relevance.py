"""Scores of judged queries equal closed forms, survive their file, and are compared on shared rows alone."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pipeline.evaluate.judgements import JudgedPairs, JudgedQueries
from pipeline.evaluate.relevance import RelevanceScores, compare_scores


def ndcg(relevant: set[int], ranking: Sequence[int]) -> float:
    """nDCG@10 from its definition: gains 1, discount log2(rank + 1)."""
    gained = sum(1 / math.log2(rank + 1) for rank, row in enumerate(ranking[:10], 1) if row in relevant)
    return gained / sum(1 / math.log2(rank + 1) for rank in range(1, min(10, len(relevant)) + 1))


@given(st.lists(st.sets(st.integers(0, 20), min_size=1, max_size=15), min_size=1, max_size=5), st.randoms())
def test_scores_of_ranks_equal_the_definition(relevant, random):
    rankings = [random.sample(range(21), 10) for _ in relevant]
    judged = JudgedQueries(
        "file", tuple(f"q{row}" for row in range(len(relevant))), tuple(("1",) for _ in relevant)
    )
    ranks = []
    for rows, ranking in zip(relevant, rankings, strict=True):
        hits = [rank for rank, row in enumerate(ranking, 1) if row in rows]
        ranks.append(np.array(hits + (len(rows) - len(hits)) * [np.inf]))
    scores = RelevanceScores.of_ranks(judged, range(len(relevant)), ranks)
    np.testing.assert_allclose(scores.scores, list(map(ndcg, relevant, rankings)), atol=1e-12)
    assert scores.value() == pytest.approx(np.mean(list(map(ndcg, relevant, rankings))))


def query_scores(scores: Sequence[float], first: int = 0) -> RelevanceScores:
    keys = tuple((f"q{row}", "id") for row in range(first, first + len(scores)))
    return RelevanceScores(keys, np.array(scores))


def pair_scores(cosines: np.ndarray, gold: np.ndarray) -> RelevanceScores:
    names = tuple(f"s{row}" for row in range(len(gold)))
    return RelevanceScores.of_cosines(JudgedPairs("file", names, names, gold), cosines)


def test_the_file_keeps_every_value():
    rng = np.random.default_rng(0)
    for scores in (query_scores(rng.random(7).tolist()), pair_scores(rng.random(7), rng.random(7))):
        again = RelevanceScores.from_bytes(scores.to_bytes())
        assert (again.keys, again.metric) == (scores.keys, scores.metric)
        assert again.value() == scores.value()
        assert again.to_bytes() == scores.to_bytes()


def test_rows_that_name_an_id_or_a_text_can_be_left_out():
    scores = RelevanceScores((("q0", "a", "b"), ("q1", "c"), ("q2", "a"), ("c", "d")), np.arange(4) / 4)
    assert scores.without({"b", "q2"}, {"q1"}).keys == (("q2", "a"), ("c", "d"))
    assert scores.without({"c"}, set()).scores.tolist() == [0, 0.5, 0.75]
    assert scores.without({"a", "c", "d"}, set()) is None
    pairs = pair_scores(np.arange(3) / 3, np.arange(3.0))
    assert pairs.without({"s0", "1.0"}, {"s2", "2.0"}).gold.tolist() == [0, 1]
    parts = sliced([0.1, 0.2], ["de", "fr"], [0.3, 0.4]).without(set(), {"q0"})
    assert (parts.slices, parts.recall.tolist()) == (("fr",), [0.4])


def test_the_value_of_pairs_is_spearmans_correlation():
    rng = np.random.default_rng(1)
    cosines, gold = rng.random(50), rng.integers(0, 6, 50).astype(float)
    expected = stats.spearmanr(cosines, gold).statistic
    assert pair_scores(cosines, gold).value() == pytest.approx(expected, abs=1e-12)
    assert pair_scores(np.ones(50), gold).value() == 0, "equal cosines say nothing"


@pytest.mark.parametrize(("loss", "is_worse"), [(0.0, False), (0.005, False), (0.08, True), (-0.08, False)])
def test_only_a_significant_loss_is_worse(loss: float, is_worse: bool):
    """The interval is close to that of Student's paired t."""
    rng = np.random.default_rng(2)
    before = rng.random(300)
    now = before - loss + rng.normal(scale=0.2, size=300)
    change = compare_scores(query_scores(before.tolist()), query_scores(now.tolist()))
    assert change is not None
    interval = stats.ttest_1samp(now - before, 0).confidence_interval(0.95)
    assert change.difference.value == pytest.approx((now - before).mean())
    assert change.difference.low == pytest.approx(interval.low, abs=4e-3)
    assert change.difference.high == pytest.approx(interval.high, abs=4e-3)
    assert change.is_worse == is_worse


def test_pairing_shows_a_loss_that_is_smaller_than_the_spread_of_queries():
    before = np.random.default_rng(3).random(200)
    change = compare_scores(query_scores(before.tolist()), query_scores((before - 0.01).tolist()))
    assert change is not None
    assert change.is_worse


def test_rows_of_one_release_only_do_not_count():
    change = compare_scores(query_scores([0.1] * 6), query_scores([0.2] * 6, first=4))
    assert change is not None
    assert [key[0] for key in change.keys] == ["q4", "q5"]
    assert change.difference.value == pytest.approx(0.1)
    assert compare_scores(query_scores([0.1] * 3), query_scores([0.1] * 3, first=3)) is None
    other_ids = RelevanceScores((("q0", "another"),), np.array([0.1]))
    assert compare_scores(query_scores([0.1]), other_ids) is None, "the same query with other relevant rows"


def test_differences_of_pairs_are_those_of_the_correlations():
    rng = np.random.default_rng(4)
    gold = rng.random(80)
    good, bad = gold + rng.normal(scale=0.1, size=80), rng.random(80)
    change = compare_scores(pair_scores(good, gold), pair_scores(bad, gold))
    assert change is not None
    expected = stats.spearmanr(bad, gold).statistic - stats.spearmanr(good, gold).statistic
    assert change.difference.value == pytest.approx(expected, abs=1e-12)
    assert change.is_worse
    assert compare_scores(query_scores(good.tolist()), pair_scores(good, gold)) is None


def test_ndcg_recall_and_mrr_equal_those_of_trec_eval():
    """pytrec_eval is trec_eval's own code; its recip_rank is unlimited, so the run has ten answers."""
    pytrec_eval = pytest.importorskip("pytrec_eval")
    rng = np.random.default_rng(4)
    relevant = [rng.choice(40, size=rng.integers(1, 15), replace=False).tolist() for _ in range(60)]
    rankings = [rng.permutation(40)[:10].tolist() for _ in relevant]
    qrels = {f"q{row}": {f"d{each}": 1 for each in ids} for row, ids in enumerate(relevant)}
    run = {
        f"q{row}": {f"d{each}": float(10 - rank) for rank, each in enumerate(ids)}
        for row, ids in enumerate(rankings)
    }
    measures = {"ndcg_cut.10", "recall.10", "recip_rank"}
    expected = pytrec_eval.RelevanceEvaluator(qrels, measures).evaluate(run)
    ranks = []
    for ids, ranking in zip(relevant, rankings, strict=True):
        hits = [rank for rank, each in enumerate(ranking, 1) if each in ids]
        ranks.append(np.array(hits + (len(ids) - len(hits)) * [np.inf]))
    queries = tuple(qrels)
    judged = JudgedQueries("file", queries, tuple(("1",) for _ in queries))
    found = RelevanceScores.of_ranks(judged, range(len(queries)), ranks)
    for name, values in (
        ("ndcg_cut_10", found.scores),
        ("recall_10", found.recall),
        ("recip_rank", found.reciprocal_rank),
    ):
        np.testing.assert_allclose(values, [expected[query][name] for query in queries], atol=1e-9)
    means = {name: each.value for name, each in found.estimates().items()}
    assert means == pytest.approx(
        {
            "nDCG@10": found.scores.mean(),
            "recall@10": found.recall.mean(),
            "MRR@10": found.reciprocal_rank.mean(),
        }
    )


def sliced(scores: Sequence[float], slices: Sequence[str], recall: Sequence[float] | None = None):
    keys = tuple((f"q{row}", "id") for row in range(len(scores)))
    found = None if recall is None else np.array(recall)
    return RelevanceScores(keys, np.array(scores), None, found, found, tuple(slices))


def test_slices_have_the_scores_intervals_and_changes_of_their_rows_alone():
    rng = np.random.default_rng(5)
    slices = ["de"] * 120 + ["fr"] * 30
    before = rng.random(150)
    now = before - np.where(np.array(slices) == "fr", 0.3, 0.0)
    found = sliced(now, slices, now / 2).of_slices(sliced(before, slices))
    assert [(each.name, each.rows) for each in found] == [("de", 120), ("fr", 30)]
    for each, rows in zip(found, (slice(0, 120), slice(120, None)), strict=True):
        assert each.estimates["nDCG@10"].value == pytest.approx(now[rows].mean())
        assert each.estimates["MRR@10"].value == pytest.approx(now[rows].mean() / 2)
        interval = stats.t.interval(
            0.95, len(now[rows]) - 1, now[rows].mean(), stats.sem(now[rows])
        )  # the bootstrap's is close to Student's
        assert each.estimates["nDCG@10"].low == pytest.approx(interval[0], abs=0.02)
        assert each.estimates["nDCG@10"].high == pytest.approx(interval[1], abs=0.02)
    assert [each.change.is_worse for each in found] == [False, True]
    assert found[1].change.difference.value == pytest.approx(-0.3)
    again = RelevanceScores.from_bytes(sliced(now, slices, now / 2).to_bytes())
    assert again.slices == tuple(slices)
    assert (again.recall == now / 2).all()
    assert sliced(now, slices).of_slices(None)[0].change is None


def test_a_slice_of_few_rows_has_no_interval_and_is_not_called_worse():
    slices = ["few"] * 9 + ["ten"] * 10
    found = {each.name: each for each in sliced([0.0] * 19, slices).of_slices(sliced([1.0] * 19, slices))}
    assert found["few"].estimates["nDCG@10"].interval(str) == ""
    assert (found["few"].change.is_worse, found["ten"].change.is_worse) == (False, True)
    assert found["few"].change.difference.value == -1


def test_scores_of_earlier_releases_have_one_metric_and_no_slices():
    old = RelevanceScores.from_bytes(query_scores([0.5, 1.0]).to_bytes())
    assert list(old.estimates()) == ["nDCG@10"]
    assert old.of_slices(None) == ()
    change = compare_scores(old, sliced([0.5, 0.5], ["a", "b"]))
    assert change is not None
    assert change.difference.value == -0.25
