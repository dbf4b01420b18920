"""Bootstrap intervals match theory and scipy; candidates share resamples, and strata keep their size."""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from pipeline.evaluate import Score
from pipeline.evaluate.bootstrap import estimate, resampled, statistics
from pipeline.settings import EvaluateSettings
from tests.evaluate.files import difference_interval, drawn, save, task_of, value_interval


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    columns = {role: [f"{role}{i}" for i in range(400)] for role in ("anchor", "positive", "negative")}
    return task_of("triplets", save(tmp_path_factory.mktemp("tasks") / "t.parquet", columns))


def accuracy(right: np.ndarray) -> Score:
    return Score("accuracy x100", 100 * right.mean(), len(right), evidence={"right": right})


def test_the_interval_of_a_proportion_is_binomial(task):
    right = np.arange(400) % 4 > 0
    found = value_interval(task, accuracy(right), 4_000, seed=1)
    spread = 100 * np.sqrt(0.75 * 0.25 / 400)
    assert found.value == 75.0
    assert found.low == pytest.approx(75 - 1.96 * spread, abs=0.35)
    assert found.high == pytest.approx(75 + 1.96 * spread, abs=0.35)
    theirs = stats.bootstrap(
        (right,), lambda x, axis: 100 * x.mean(axis), n_resamples=4_000, method="percentile", rng=2
    ).confidence_interval
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high), abs=0.5)


def test_a_difference_is_paired(task):
    """Use two candidates with almost the same errors: the paired interval is narrow, although the others
    overlap.
    """
    first = np.arange(400) % 4 > 0
    second = first | (np.arange(400) % 16 == 0)
    found = difference_interval(task, accuracy(first), accuracy(second), 1_000, seed=1)
    assert found.value == pytest.approx(6.25)
    assert found.low is not None
    assert found.high is not None
    assert found.low > 0
    assert found.high - found.low < 5
    same = difference_interval(task, accuracy(first), accuracy(first), 100, seed=1)
    assert (same.low, same.high) == (0, 0)


def test_equal_seeds_give_equal_intervals(task):
    score = accuracy(np.arange(400) % 3 > 0)
    assert value_interval(task, score, 50, seed=3) == value_interval(task, score, 50, seed=3)
    assert value_interval(task, score, 50, seed=3) != value_interval(task, score, 50, seed=4)


def test_a_resample_keeps_the_size_of_each_stratum():
    strata = np.array([2, 0, 0, 1, 2, 2])
    for rows in resampled({"stratum": strata}, 20, seed=0):
        assert sorted(strata[rows]) == sorted(strata)


def test_without_resamples_there_is_no_interval(task):
    found = estimate(100.0, statistics(task, accuracy(np.ones(4)).evidence, 0, seed=0))
    assert (found.value, found.low, found.high) == (100.0, None, None)


def test_the_interval_of_many_pairs_in_subsets_contains_the_score(tmp_path: Path):
    rng = np.random.default_rng(0)
    columns = {
        "subset": [f"s{i % 5}" for i in range(3_000)],
        "sentence1": [f"a{i}" for i in range(3_000)],
        "sentence2": [f"b{i}" for i in range(3_000)],
    }
    task = task_of(
        "sts",
        save(tmp_path / "sts.parquet", columns | {"score": rng.integers(0, 26, 3_000) / 5}),
        EvaluateSettings(aggregation="wmean"),
    )
    score = task.score(drawn())
    found = value_interval(task, score, 1_000, seed=0)
    assert found.low is not None
    assert found.high is not None
    assert found.low < score.value < found.high
