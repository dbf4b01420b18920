"""Both published aggregations of the yearly STS sets match scipy, and so do their averages."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy.stats import spearmanr

from pipeline.flows.evaluate.report import aggregated_scores, aggregation_section
from pipeline.flows.evaluate.scoring import MeasuredTask, ResampledResult
from tests.evaluate.files import random_vectors, save, task_of
from tests.flows.evaluate.evaluating import sts_result, write_pairs

CANDIDATES = ("small", "large")


def measured(file: Path, name: str, kind: str = "sts") -> MeasuredTask:
    """Score a file of pairs with the random vectors of two candidates."""
    task = task_of(kind, file, name=name)
    scores = [task.score(random_vectors(seed=seed)) for seed in range(len(CANDIDATES))]
    results = [
        sts_result(metric=score.metric, value=score.value, count=score.count, metrics=dict(score.metrics))
        for score in scores
    ]
    return MeasuredTask(task, tuple(results))


def by_scipy(file: Path, seed: int, aggregation: str) -> float:
    """Compute Spearman x100 of all pairs, or its mean over subsets, weighted by their pairs ("wmean")."""
    table, vectors = pq.read_table(file), random_vectors(seed=seed)
    left, right = np.split(vectors(table["sentence1"].to_pylist() + table["sentence2"].to_pylist()), 2)
    cosines = np.sum(left * right, axis=1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)
    gold, subset = table["score"].to_numpy(), np.array(table["subset"].to_pylist())
    if aggregation == "all":
        return 100 * float(spearmanr(cosines, gold).statistic)
    parts = [subset == name for name in np.unique(subset)]
    values = [spearmanr(cosines[part], gold[part]).statistic for part in parts]
    return 100 * float(np.average(values, weights=[part.sum() for part in parts]))


def test_yearly_sets_have_both_aggregations_and_other_sets_count_in_both_averages(tmp_path: Path):
    years, benchmark = write_pairs(tmp_path / "a.parquet", 61), write_pairs(tmp_path / "b.parquet", 45, 1)
    sets = [measured(years, "STS12"), measured(benchmark, "STSB-test"), measured(benchmark, "mine")]
    scores = aggregated_scores(sets, CANDIDATES)
    average = "average of the 2 measured: STS12, STSB-test"
    found = {(score.task, score.candidate, score.aggregation): score.value for score in scores}
    expected = {}
    for seed, name in enumerate(CANDIDATES):
        for aggregation in ("all", "wmean"):
            yearly = by_scipy(years, seed, aggregation)
            expected["STS12", name, aggregation] = yearly
            expected[average, name, aggregation] = (yearly + by_scipy(benchmark, seed, "all")) / 2
    assert found == pytest.approx(expected, abs=1e-4)
    assert abs(found["STS12", "small", "all"] - found["STS12", "small", "wmean"]) > 0.01
    section = aggregation_section(scores)
    header = ("Spearman x100", "small, all", "small, wmean", "large, all", "large, wmean")
    assert section.table[0] == header
    assert [row[0] for row in section.table[1:]] == ["STS12", average]


def test_other_tasks_have_no_table_of_aggregations(tmp_path: Path):
    pairs = write_pairs(tmp_path / "a.parquet", 40)
    labels = save(
        tmp_path / "pairs.parquet",
        {"sentence1": ["a", "b"], "sentence2": ["c", "d"], "label": [0, 1]},
    )
    assert (
        aggregated_scores([measured(pairs, "STSB-test"), measured(labels, "STS12", "pairs")], CANDIDATES)
        == []
    )


def test_an_undefined_aggregation_is_reported_as_not_defined(tmp_path: Path):
    year = measured(write_pairs(tmp_path / "a.parquet", 40), "STS13")
    without_wmean = [
        ResampledResult(scored.result.model_copy(update={"metrics": {"Spearman all": 50.0}}), None)
        for scored in year.results
    ]
    scores = aggregated_scores([MeasuredTask(year.task, tuple(without_wmean))], ["one"])
    assert [(score.aggregation, score.value) for score in scores] == [("all", 50.0), ("wmean", None)]
    assert aggregation_section(scores).table[1] == ("STS13", "50.00", "not defined")
