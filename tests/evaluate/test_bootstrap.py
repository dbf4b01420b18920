"""Bootstrap intervals match theory and scipy; candidates share resamples, and strata keep their size."""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from pipeline.evaluate import Score
from pipeline.evaluate.bootstrap import estimate, resample_rows, statistics
from pipeline.evaluate.metrics import average_precision
from pipeline.settings import EvaluateSettings
from tests.evaluate.files import difference_interval, random_vectors, save, task_of, value_interval

PAIRS, SAMPLES, RESAMPLES = 100, 1_000, 200


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
    """The interval of the difference is narrow, although the intervals of the two candidates overlap."""
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
    resamples = list(resample_rows({"stratum": strata}, 20, seed=0))
    assert len({tuple(rows) for rows in resamples}) > 10  # of the 27 x 4 there are
    assert [sorted(strata[rows]) for rows in resamples] == [sorted(strata)] * 20


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
    score = task.score(random_vectors())
    found = value_interval(task, score, 1_000, seed=0)
    assert found.low is not None
    assert found.high is not None
    assert found.low < score.value < found.high


def normal_scores(rng: np.random.Generator, count: int) -> dict[str, np.ndarray]:
    """Draw pairs whose gold scores and predictions are normal with correlation 0.8."""
    gold, noise = rng.normal(size=(2, count))
    return {"prediction": 0.8 * gold + 0.6 * noise, "gold": gold, "stratum": np.zeros(count, np.int64)}


def labelled_scores(rng: np.random.Generator, count: int) -> dict[str, np.ndarray]:
    """Draw pairs of two classes of equal size, whose predictions are normal at a distance of 2."""
    positive = rng.random(count) < 0.5
    return {"prediction": 2 * positive + rng.normal(size=count), "positive": positive}


def many_labelled_pairs() -> float:
    """Estimate the average precision x100 of the distribution: its standard error is 0.03."""
    evidence = labelled_scores(np.random.default_rng(1), 1_000_000)
    return 100 * average_precision(evidence["prediction"], evidence["positive"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "columns", "draw", "true_value", "coverage"),
    [
        # Spearman's correlation of a bivariate normal is 6 / pi arcsin(r / 2) (Pearson 1907).
        ("sts", {"score": np.arange(6)}, normal_scores, lambda: 600 / np.pi * np.arcsin(0.4), (0.94, 0.96)),
        ("pairs", {"label": [0, 1]}, labelled_scores, many_labelled_pairs, (0.89, 0.93)),
    ],
    ids=["Spearman", "average precision"],
)
def test_intervals_contain_the_true_value_as_often_as_documented(
    kind, columns, draw, true_value, coverage, tmp_path: Path
):
    """Simulate samples of 100 pairs; the bounds leave 0.1 % on either side for the documented coverages."""
    rows = len(next(iter(columns.values())))
    sentences = {name: [f"{name}{i}" for i in range(rows)] for name in ("sentence1", "sentence2")}
    task = task_of(kind, save(tmp_path / "task.parquet", {**sentences, **columns}))
    rng, true, covered = np.random.default_rng(0), true_value(), 0
    for seed in range(SAMPLES):
        interval = estimate(true, statistics(task, draw(rng, PAIRS), RESAMPLES, seed))
        assert interval.low is not None
        assert interval.high is not None
        covered += interval.low <= true <= interval.high
    least, most = (
        stats.binom.ppf(tail, SAMPLES, p) for tail, p in zip((0.001, 0.999), coverage, strict=True)
    )
    assert least <= covered <= most
