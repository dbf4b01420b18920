"""Answers of two releases are compared by id, and intervals contain the truth as often as they say."""

import math

import numpy as np
import pytest
from scipy import stats

from pipeline.serve.comparisons import AnswerComparison, Comparisons, compare, kendall_tau, verdict


def answers(ids: str, score: float = 0.5) -> list[tuple[str | int, float]]:
    return [(each, score) for each in ids]


def test_overlap_counts_the_ids_of_the_first_ten_answers_only():
    same = compare([answers("abcdefghijkl")], [answers("abcdefghijlk")], 1, 2)
    assert (same.hits, same.places, same.tau, same.shift) == (10, 10, 1, 0)
    moved = compare([answers("abcdefghijkl")], [answers("kabcdefghijl")], 1, 2)
    assert (moved.hits, moved.places) == (9, 10)
    shorter = compare([answers("abc")], [answers("b")], 1, 2)
    assert (shorter.hits, shorter.places) == (1, 3)
    assert math.isnan(shorter.tau)


def test_answers_without_rows_say_nothing():
    empty = compare([[]], [[]], 1, 2)
    assert (empty.hits, empty.places) == (0, 0)
    assert math.isnan(empty.shift)
    found = Comparisons()
    found.add(empty)
    assert found.differences().overlap_at_10 is None


def test_tau_equals_scipy_s():
    rng = np.random.default_rng(0)
    for size in range(2, 11):
        order = rng.permutation(size)
        assert kendall_tau(order.tolist()) == pytest.approx(stats.kendalltau(range(size), order).statistic)


def test_the_shift_is_the_mean_over_common_ids():
    found = compare([answers("ab", 0.5)], [answers("bc", 0.7)], 1, 2)
    assert found.shift == pytest.approx(0.2)


def test_intervals_contain_the_truth_in_about_95_of_100_samples():
    rng = np.random.default_rng(1)
    inside = dict.fromkeys(("overlap_at_10", "kendall_tau", "first_ms"), 0)
    truth = {"overlap_at_10": 0.8, "kendall_tau": 0.0, "first_ms": 1_000 * math.log(2)}
    for _ in range(400):
        comparisons = Comparisons()
        for hits, tau, seconds in zip(
            rng.binomial(10, 0.8, 150), rng.uniform(-1, 1, 150), rng.exponential(1, 150), strict=True
        ):
            comparisons.add(AnswerComparison(int(hits), 10, tau, 0.0, seconds, 1.0))
        found = comparisons.differences()
        for name in inside:
            estimate = getattr(found, name)
            inside[name] += estimate.low <= truth[name] <= estimate.high
    assert inside["overlap_at_10"] == 400, "wide if answers of a request are independent"
    assert 370 <= inside["kendall_tau"] <= 392
    assert 370 <= inside["first_ms"] <= 396


def test_the_overlap_s_interval_holds_if_a_request_s_answers_all_agree_or_all_differ():
    rng, inside = np.random.default_rng(2), 0
    for _ in range(400):
        comparisons = Comparisons()
        for agrees in rng.random(150) < 0.8:
            comparisons.add(AnswerComparison(10 * int(agrees), 10, 0.0, 0.0, 1.0, 1.0))
        estimate = comparisons.differences().overlap_at_10
        assert estimate is not None
        assert estimate.low is not None
        assert estimate.high is not None
        inside += estimate.low <= 0.8 <= estimate.high
    assert 368 <= inside <= 396


def test_only_the_latest_comparisons_count():
    comparisons = Comparisons()
    for hits in (0, 10):
        for _ in range(10_000):
            comparisons.add(AnswerComparison(hits, 10, 0.0, 0.0, 1.0, 1.0))
    found = comparisons.differences()
    assert found.requests == 20_000
    assert found.overlap_at_10 is not None
    assert found.overlap_at_10.value == 1


@pytest.mark.parametrize(
    ("requests", "hits", "outcomes", "words"),
    [
        (99, 10, {}, "Only 99 requests were compared: wait for 100"),
        (200, 10, {}, "nearly the same; to publish it: COMMAND"),
        (200, 10, {"failed": 3}, "failed 3 requests that release 4 answered: do not publish it"),
        (200, 7, {}, "Some answers differ: see with manta evaluate which are better, then: COMMAND"),
        (200, 2, {}, "Most answers differ: do not publish it unless"),
    ],
)
def test_the_verdict_is_a_sentence_with_numbers_and_what_to_do(
    requests: int, hits: int, outcomes: dict[str, int], words: str
):
    comparisons = Comparisons()
    for _ in range(requests):
        comparisons.add(AnswerComparison(hits, 10, 1.0, 0.0, 0.01, 0.01))
    said = verdict("candidate ab", 4, comparisons.differences(), outcomes, "COMMAND")
    assert words in said
    if requests > 100:
        assert f"candidate ab gives {hits * 10:.1f}% of the first ten answers of release 4 (95 %" in said
