"""Answers of analogies match a loop over all words; unknown words are counted, and never right."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.errors import DataError
from pipeline.evaluate import analogies
from pipeline.evaluate.analogies import answer
from tests.evaluate.files import looked_up, random_vectors, save, task_of

# Capitals are their countries plus (0, 1) before normalization; "river" is near Paris - France + Spain.
WORDS = {
    "France": [1.0, 0.0, 0.1],
    "Paris": [1.0, 1.0, 0.1],
    "Spain": [0.2, 0.0, 1.0],
    "Madrid": [0.2, 1.0, 1.0],
    "Italy": [0.7, 0.0, 0.7],
    "Rome": [0.7, 1.0, 0.7],
    "river": [-1.0, 0.2, 0.0],
}


def questions(folder: Path, **changed: Any) -> Path:
    columns = {
        "a": ["France", "France", None],
        "b": ["Paris", "Paris", None],
        "c": ["Spain", "Italy", None],
        "d": ["Madrid", "Rome", "river"],
        "category": ["west", "south", None],
    }
    return save(folder / "questions.parquet", columns | changed)


def expected_answer(words: dict[str, np.ndarray], a: str, b: str, c: str, excluded: bool) -> str:
    """Return the word of the largest cosine with b - a + c of unit vectors."""
    unit = {word: np.array(x) / np.linalg.norm(x) for word, x in words.items()}
    target = unit[b] - unit[a] + unit[c]
    left = [word for word in unit if not (excluded and word in (a, b, c))]
    return max(left, key=lambda word: unit[word] @ target / np.linalg.norm(target))


def test_answers_match_a_loop_over_all_words(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(analogies, "_BLOCK", 700)  # a few questions at once
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 3)) * rng.uniform(0.2, 5, size=(30, 1))
    asked = np.array([rng.permutation(30)[:4] for _ in range(400)])
    words = {str(number): row for number, row in enumerate(x)}
    right, right_among_all = answer(x, asked)
    for excluded, found in ((True, right), (False, right_among_all)):
        expected = [
            expected_answer(words, str(a), str(b), str(c), excluded) == str(d) for a, b, c, d in asked
        ]
        assert found.tolist() == expected
    assert 0 < right_among_all.sum() < right.sum() < len(right)


def test_the_score_matches_the_file(tmp_path: Path):
    score = task_of("analogies", questions(tmp_path)).score(looked_up(WORDS))
    assert (score.value, score.count) == (100, 2)
    assert score.metrics["accuracy of west"] == score.metrics["accuracy of south"] == 100
    assert (score.facts["candidates"], score.facts["known_questions"]) == (7, 2)
    assert score.facts["without_vector"] == 0
    assert score.warnings == ()
    wrong = task_of("analogies", questions(tmp_path, d=["Rome", "Rome", "Madrid"])).score(looked_up(WORDS))
    assert (wrong.value, wrong.metrics["accuracy of west"]) == (50, 0)


def test_unknown_words_are_named_counted_as_wrong_and_no_candidates(tmp_path: Path):
    words = WORDS | {"Italy": [0.0] * 3, "Madrid": [-0.1, -1.0, -1.0], "river": [0.0] * 3}
    # all known candidates but Madrid are given words, and Rome is the nearer one
    score = task_of("analogies", questions(tmp_path)).score(looked_up(words))
    assert score.value == 0
    assert score.facts["without_vector"] == 2
    assert score.facts["first_without_vector"] == ["Italy", "river"]
    assert score.warnings == (
        "questions: the encoder gave 2 texts no usable vector ('Italy', 'river'): "
        "1 of 2 questions count as wrong",
    )
    known = task_of("analogies", questions(tmp_path)).score(looked_up(WORDS | {"Italy": [0.0] * 3}))
    assert (known.value, known.metrics["accuracy of known questions"]) == (50, 100)
    assert known.evidence["right"].tolist() == [True, False]


def test_a_given_word_is_never_the_answer(tmp_path: Path):
    score = task_of("analogies", questions(tmp_path, d=["Paris", "Paris", "river"])).score(looked_up(WORDS))
    assert score.value == 0


def test_equal_vectors_are_a_tie_and_count_as_wrong(tmp_path: Path):
    score = task_of("analogies", questions(tmp_path)).score(looked_up(WORDS | {"river": WORDS["Madrid"]}))
    assert score.value == 50
    assert score.metrics["accuracy of west"] == 0


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"b": ["Paris", None, None]}, "a, b, c and d in every row, or d alone .*, found 1 rows without one"),
        ({"d": ["Madrid", "Rome", " "]}, "found 1 rows without one"),
        (
            {name: [None] * 3 for name in "abc"},
            "at least one question, and 5 different words, found 0 questions, 3 words; add candidate words",
        ),
        (
            {"c": ["France", "France", None], "d": ["Paris"] * 3},
            "and 5 different words, found 2 questions, 2 words",
        ),
    ],
)
def test_unsuitable_rows_are_refused(tmp_path: Path, changed: dict[str, Any], message: str):
    with pytest.raises(DataError, match=message):
        task_of("analogies", questions(tmp_path, **changed))


def test_the_column_of_categories_is_optional(tmp_path: Path):
    columns = {"a": ["p"], "b": ["q"], "c": ["r"], "d": ["s"]}
    extra = {name: [*values, None] for name, values in columns.items()} | {"d": ["s", "t"]}
    score = task_of("analogies", save(tmp_path / "plain.parquet", extra)).score(random_vectors())
    assert list(score.metrics) == ["accuracy with a, b and c among the candidates"]
