"""Properties of every kind of task."""

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.config import canonical
from pipeline.evaluate import TASKS
from pipeline.settings import EvaluateSettings
from tests.evaluate.files import difference_interval, random_vectors, save, task_of, value_interval

ROWS = 60
RNG = np.random.default_rng(0)
LEFT = [f"a{row}" for row in range(ROWS)]
RIGHT = [None, *(f"b{row}" for row in range(1, ROWS))]
LABELS = RNG.integers(0, 2, ROWS)
COLUMNS: dict[str, dict[str, Any]] = {
    "sts": {
        "sentence1": LEFT,
        "sentence2": RIGHT,
        "score": RNG.uniform(0, 5, ROWS),
        "subset": ["x", "y"] * (ROWS // 2),
    },
    "pairs": {"sentence1": LEFT, "sentence2": RIGHT, "label": LABELS},
    "triplets": {"anchor": LEFT, "positive": RIGHT, "negative": [f"c{row}" for row in range(ROWS)]},
    "retrieval": {"query": LEFT, "positive": RIGHT},
    "duplicates": {"sentence1": LEFT, "sentence2": RIGHT, "label": LABELS},
    "transfer": {"text": LEFT, "label": LABELS},
    "relatedness": {
        "sentence1": LEFT,
        "sentence2": RIGHT,
        "score": RNG.uniform(0, 5, ROWS),
        "split": ["train"] * 40 + ["test"] * 20,
    },
    "analogies": {
        "a": [*LEFT[:40], *[None] * 20],
        "b": [*LEFT[1:41], *[None] * 20],
        "c": [*LEFT[2:42], *[None] * 20],
        "d": LEFT[:1] + LEFT[4:43] + LEFT[40:],
        "category": ["x", "y"] * (ROWS // 2),
    },
    "categories": {"text": LEFT, "label": ["x", "y", "z"] * (ROWS // 3)},
    "weat": {"text": LEFT, "set": ["X", "Y", "A", "B"] * (ROWS // 4)},
}
WITHOUT_EVIDENCE = {"duplicates", "weat"}  # their rows cannot be resampled


@pytest.fixture(params=TASKS.names())
def task(request: pytest.FixtureRequest, tmp_path: Path):
    return task_of(
        request.param, save(tmp_path / "rows.parquet", COLUMNS[request.param]), EvaluateSettings(folds=3)
    )


def test_a_task_encodes_its_sentences_only(task):
    asked: list[str] = []
    vectors = random_vectors()
    task.score(lambda sentences: (asked.extend(sentences), vectors(sentences))[1])
    assert set(asked) == set(task.sentences())
    assert None not in asked


def test_everything_but_the_evidence_is_json(task):
    score = task.score(random_vectors())
    again = json.loads(
        canonical(
            {
                "metric": score.metric,
                "value": score.value,
                "metrics": dict(score.metrics),
                "facts": dict(score.facts),
                "count": score.count,
            }
        )
    )
    assert again["value"] == score.value
    assert again["metrics"] == score.metrics
    assert all(type(metric) is float for metric in score.metrics.values())
    assert "x100" in score.metric


def test_a_pickled_task_scores_the_same(task):
    again = pickle.loads(pickle.dumps(task))
    assert (again.kind, again.name, again.digest) == (task.kind, "rows", task.digest)
    assert len(task.digest) == 64
    assert len(pickle.dumps(task)) < 2_000
    assert again.score(random_vectors()).value == task.score(random_vectors()).value


def test_the_class_describes_its_kind(task):
    assert TASKS[task.kind] is type(task)
    assert task.description[0].isupper()
    assert task.description.endswith(".")
    assert type(task.quick) is bool


def test_the_digest_depends_on_the_name(task):
    assert replace(task, name="other").digest != task.digest


def test_the_statistic_of_all_rows_is_the_value(task):
    first, second = task.score(random_vectors(seed=1)), task.score(random_vectors(seed=2))
    assert bool(first.evidence) == (task.kind not in WITHOUT_EVIDENCE)
    if task.kind in WITHOUT_EVIDENCE:
        return
    assert {len(values) for values in first.evidence.values()} == {first.count}
    assert task.statistic(first.evidence, np.arange(first.count)) == pytest.approx(first.value, abs=1e-9)
    alone = value_interval(task, first, 100, seed=0)
    difference = difference_interval(task, first, second, 100, seed=0)
    assert alone.low <= first.value <= alone.high
    assert difference.value == pytest.approx(second.value - first.value)
    assert difference.low < difference.high


def test_equal_vectors_for_all_texts_are_scored_without_failing(task):
    score = task.score(lambda sentences: np.ones((len(sentences), 4), np.float32))
    assert np.isfinite(score.value)


def test_zero_vectors_are_scored_without_failing(task):
    score = task.score(lambda sentences: np.zeros((len(sentences), 4), np.float32))
    assert np.isfinite(score.value)
