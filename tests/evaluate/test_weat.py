"""WEAT matches a hand computation, and its p value an enumeration of all divisions."""

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.errors import DataError
from pipeline.evaluate.weat import associations, permutation_p_value
from pipeline.settings import EvaluateSettings
from tests.evaluate.files import looked_up, random_vectors, save, task_of

VECTORS = {
    "x1": [1.0, 0.0],
    "x2": [0.8, 0.6],
    "y1": [0.0, 2.0],
    "y2": [0.6, 0.8],
    "a": [3.0, 0.0],
    "b": [0.0, 1.0],
}


def words(folder: Path, **changed: Any) -> Path:
    columns = {"text": list(VECTORS), "set": ["X", "X", "Y", "Y", "A", "B"]}
    return save(folder / "words.parquet", columns | changed)


def test_the_effect_matches_a_hand_computation(tmp_path: Path):
    # s(w) = cos(w, a) - cos(w, b): 1 and .2 for X, -1 and -.2 for Y; means .6 and -.6; the squares of all
    # four sum to 2.08, and their standard deviation is sqrt(2.08 / 3).
    score = task_of("weat", words(tmp_path)).score(looked_up(VECTORS))
    assert score.metrics["effect size"] == pytest.approx(1.2 / (2.08 / 3) ** 0.5, abs=1e-6)
    assert score.value == pytest.approx(100 * score.metrics["effect size"])
    assert score.metrics["mean association of X"] == pytest.approx(0.6, abs=1e-6)
    assert score.metrics["p value"] == pytest.approx(1 / 6)  # the observed division is the first of 6
    assert (score.count, score.facts["words"]) == (4, {"X": 2, "Y": 2, "A": 1, "B": 1})


def test_exchanging_the_attributes_changes_the_sign(tmp_path: Path):
    file = words(tmp_path, set=["X", "X", "Y", "Y", "B", "A"])
    score = task_of("weat", file).score(looked_up(VECTORS))
    assert score.metrics["effect size"] == pytest.approx(-1.2 / (2.08 / 3) ** 0.5, abs=1e-6)
    assert score.metrics["p value"] == 1


def test_associations_average_over_several_attributes():
    rng = np.random.default_rng(0)
    x, a, b = rng.normal(size=(3, 4)), rng.normal(size=(5, 4)), rng.normal(size=(2, 4))
    cosine = [[u @ v / np.linalg.norm(u) / np.linalg.norm(v) for v in [*a, *b]] for u in x]
    expected = [np.mean(row[:5]) - np.mean(row[5:]) for row in cosine]
    np.testing.assert_allclose(associations(x, a, b), expected, atol=1e-12)


def enumerated(first: np.ndarray, second: np.ndarray) -> float:
    both, observed = np.r_[first, second], first.mean() - second.mean()
    differences = []
    for chosen in combinations(range(len(both)), len(first)):
        is_first = np.isin(np.arange(len(both)), chosen)
        differences.append(both[is_first].mean() - both[~is_first].mean())
    return float(np.mean(np.array(differences) >= observed - 1e-12))


def test_the_p_value_matches_all_divisions_exactly_or_by_sampling():
    rng = np.random.default_rng(1)
    first, second = rng.normal(0.4, size=6), rng.normal(size=7)  # 1,716 divisions
    expected = enumerated(first, second)
    assert 0.02 < expected < 0.98
    assert permutation_p_value(first, second, 1_716, seed=0) == pytest.approx(expected, abs=1e-9)
    sampled = permutation_p_value(first, second, 1_500, seed=0)
    assert sampled == pytest.approx(expected, abs=4 * (expected * (1 - expected) / 1_500) ** 0.5)
    assert sampled != permutation_p_value(first, second, 1_500, seed=1)
    assert sampled == permutation_p_value(first, second, 1_500, seed=0)


def test_a_different_association_is_significant_and_an_equal_one_is_not():
    rng = np.random.default_rng(2)
    same, other = rng.normal(size=25), rng.normal(size=25)
    assert permutation_p_value(same, other, 2_000, seed=0) > 0.05
    assert permutation_p_value(same + 3, other, 2_000, seed=0) == pytest.approx(1 / 2_001)


def test_one_of_several_tests_in_a_file_is_chosen_by_split(tmp_path: Path):
    columns = {
        "text": [*VECTORS, *VECTORS],
        "set": [*"XXYYAB", *"YYXXAB"],
        "split": ["one"] * 6 + ["two"] * 6,
    }
    file = save(tmp_path / "tests.parquet", columns)
    one, two = (task_of("weat", file, options={"split": name}) for name in ("one", "two"))
    values = [each.score(looked_up(VECTORS)).value for each in (one, two)]
    assert values[0] == pytest.approx(-values[1])
    with pytest.raises(DataError, match="'x1' more than once"):
        task_of("weat", file)


def test_words_without_any_difference_have_no_effect_and_a_warning(tmp_path: Path):
    score = task_of("weat", words(tmp_path)).score(lambda texts: np.ones((len(texts), 3), np.float32))
    assert (score.value, score.metrics["p value"]) == (0, 1)
    assert "every word of X and Y has the same association" in score.warnings[0]


def test_words_without_a_vector_are_counted_over_all_sets_and_named(tmp_path: Path):
    vectors = VECTORS | {"x2": [0.0, 0.0], "y1": [0.0, 0.0], "b": [0.0, 0.0]}
    score = task_of("weat", words(tmp_path)).score(looked_up(vectors))
    assert score.facts["without_vector"] == 3
    (warning,) = score.warnings
    assert (
        "gave 3 texts no usable vector ('x2', 'y1', 'b'): their cosines with all words count as 0" in warning
    )
    # the associations are the cosines with a alone: 1 and 0, 0 and .6
    assert score.metrics["mean association of X"] == pytest.approx(0.5, abs=1e-6)
    assert score.metrics["mean association of Y"] == pytest.approx(0.3, abs=1e-6)


def test_the_seed_and_the_number_of_permutations_are_part_of_the_digest(tmp_path: Path):
    file = words(tmp_path)
    tasks = [
        task_of("weat", file),
        task_of("weat", file, EvaluateSettings(seed=1)),
        task_of("weat", file, options={"permutations": 200}),
    ]
    assert len({task.digest for task in tasks}) == 3
    assert task_of("weat", file, EvaluateSettings(similarity="dot")).digest == tasks[0].digest
    assert not tasks[0].score(random_vectors()).evidence


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"set": [*"XXYYAA"]}, "the sets X, Y, A and B, one for every row, found X, Y, A;"),
        ({"set": [*"XXYYA", None]}, "and rows without one"),
        ({"set": [*"XXYYA", "C"]}, "found X, Y, A, C"),
        ({"set": [*"XYYYAB"]}, "at least two words in X and in Y, found one in X"),
        ({"text": ["x1", "x1", "y1", "y2", "a", "b"]}, "'x1' more than once"),
    ],
)
def test_unsuitable_sets_are_refused(tmp_path: Path, changed: dict[str, Any], message: str):
    with pytest.raises(DataError, match=message):
        task_of("weat", words(tmp_path, **changed))
