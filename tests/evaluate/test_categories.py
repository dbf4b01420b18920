"""Purity matches a hand computation; unknown words are counted and are in no cluster."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics.cluster import contingency_matrix

from pipeline.errors import DataError
from pipeline.evaluate.categories import cluster, in_majority
from pipeline.settings import EvaluateSettings
from tests.evaluate.files import looked_up, save, task_of

# Two directions: the third animal lies with the tools. Lengths differ, which must not matter.
WORDS = {
    "dog": [9.0, 0.1],
    "cat": [1.0, 0.0],
    "saw": [0.0, 1.0],
    "axe": [0.3, 7.0],
    "ram": [0.1, 0.8],
}


def words(folder: Path, **changed: Any) -> Path:
    columns = {"text": list(WORDS), "label": ["animal", "animal", "tool", "tool", "animal"]}
    return save(folder / "words.parquet", columns | changed)


def test_the_purity_matches_a_hand_computation(tmp_path: Path):
    # clusters {dog, cat} and {saw, axe, ram}: 2 + 2 of 5 words are of the largest category
    score = task_of("categories", words(tmp_path)).score(looked_up(WORDS))
    assert (score.value, score.count, score.facts["categories"]) == (pytest.approx(80), 5, 2)
    assert score.evidence["right"].tolist() == [True, True, True, True, False]
    assert score.warnings == ()


def test_purity_is_that_of_the_contingency_matrix():
    rng = np.random.default_rng(0)
    clusters, labels = rng.integers(6, size=200), rng.integers(4, size=200)
    expected = contingency_matrix(labels, clusters).max(axis=0).sum()
    assert in_majority(clusters, labels).sum() == expected


def test_separate_groups_are_found_and_the_seed_counts():
    rng = np.random.default_rng(1)
    labels = rng.integers(5, size=300)
    x = 5 * np.eye(5)[labels] + 0.1 * rng.normal(size=(300, 5))
    assert in_majority(cluster(x, 5, seed=0), labels).all()
    noise = rng.normal(size=(300, 5))
    np.testing.assert_array_equal(cluster(noise, 5, seed=3), cluster(noise, 5, seed=3))


def test_unknown_words_are_named_and_count_as_wrong(tmp_path: Path):
    score = task_of("categories", words(tmp_path)).score(looked_up(WORDS | {"saw": [0.0, 0.0]}))
    # clusters {dog, cat} and {axe, ram}: 2 + 1 of 4 known words, of 5 in all
    assert (score.value, score.metrics["purity of known words"]) == (pytest.approx(60), pytest.approx(75))
    assert score.facts["first_without_vector"] == ["saw"]
    assert score.warnings == (
        "words: the encoder gave 1 text no usable vector ('saw'): they are in no cluster and count as wrong",
    )


def test_equal_vectors_are_one_cluster(tmp_path: Path):
    score = task_of("categories", words(tmp_path)).score(looked_up({word: [1.0, 2.0] for word in WORDS}))
    assert score.value == pytest.approx(60)


def test_the_seed_is_part_of_the_digest(tmp_path: Path):
    file = words(tmp_path)
    tasks = [task_of("categories", file), task_of("categories", file, EvaluateSettings(seed=1))]
    assert tasks[0].digest != tasks[1].digest


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"label": ["x", "y", None, "x", "y"]}, "a category for every word, found 1 words without one"),
        ({"text": ["dog", "cat", "saw", "dog", "ram"]}, "different words, found 1 repeated"),
        ({"label": ["x"] * 5}, "at least two categories, found 1"),
    ],
)
def test_unsuitable_rows_are_refused(tmp_path: Path, changed: dict[str, Any], message: str):
    with pytest.raises(DataError, match=message):
        task_of("categories", words(tmp_path, **changed))
