"""Analogies of words: a is to b as c is to which word? (Mikolov et al. 2013)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pipeline.errors import DataError
from pipeline.evaluate import TASKS, EvaluationTask, Score, Vectors
from pipeline.evaluate.similarity import vectors_of
from pipeline.evaluate.source import TaskRoles, TaskRows
from pipeline.evaluate.vocabulary import has_vector, missing_facts, missing_texts, missing_warnings
from pipeline.stats.geometry import unit_rows

GIVEN, EXPECTED = ("a", "b", "c"), "d"
_MIN_WORDS = 5  # with only four words, the expected word would be the only candidate
_BLOCK = 1 << 24  # similarities at once: 128 MB
_DECIMALS = 12  # similarities are rounded, so that equal vectors are a tie


@dataclass(frozen=True)
class Analogies:
    """Questions and the words among which their answers are sought."""

    words: list[str]
    """the distinct words of the file"""
    questions: np.ndarray
    """(n, 4) indices into `words`: a, b, c and the expected d"""
    category: np.ndarray
    """(n,) index of each question's category in `category_names`; -1 without one"""
    category_names: list[str]
    """names of the categories"""


@TASKS.register("analogies")
@dataclass(frozen=True)
class AnalogiesTask(EvaluationTask):
    """Accuracy of analogies: the word whose vector is nearest to b - a + c has to be d.

    Roles: a, b, c, d, and optionally category. A row with d alone adds a candidate word, such as one of the
    vocabulary; the other candidates are all words of the questions. As in the program of word2vec, vectors
    are normalized before they are added, similarity is the cosine, and a, b and c are not candidates. A tie
    counts as wrong, and so does a question with a word that has no vector. Options: split.
    """

    kind: ClassVar[str] = "analogies"
    description: ClassVar[str] = (
        "Proportion of questions, a is to b as c is to d, whose d is nearest to b - a + c by cosine. The "
        "three given words are not candidates."
    )
    quick: ClassVar[bool] = True
    roles: ClassVar[TaskRoles] = TaskRoles((*GIVEN, EXPECTED), optional=("category",))
    score_settings: ClassVar[tuple[str, ...]] = ()

    def analogies(self) -> Analogies:
        """Return the questions and candidates. Raises DataError for incomplete rows or too few words."""
        rows = self.file.rows()
        columns = [rows.texts(role) for role in (*GIVEN, EXPECTED)]
        words = list(dict.fromkeys(text for column in columns for text in column if text.strip()))
        index = {word: number for number, word in enumerate(words)}
        indices = np.array([[index.get(text, -1) for text in column] for column in columns], np.int64).T
        is_question = (indices[:, :3] >= 0).any(axis=1)
        if incomplete := int((indices[is_question] < 0).any(axis=1).sum() + (indices[:, 3] < 0).sum()):
            raise DataError(
                self.file.where,
                "a, b, c and d in every row, or d alone for a candidate word",
                f"{incomplete:,} rows without one of them",
                "complete or remove these rows",
            )
        if not is_question.any() or len(words) < _MIN_WORDS:
            raise DataError(
                self.file.where,
                f"at least one question, and {_MIN_WORDS} different words",
                f"{int(is_question.sum())} questions, {len(words)} words",
                "add candidate words: rows with d alone",
            )
        category, names = _categories(rows)
        return Analogies(words, indices[is_question], category[is_question], names)

    def sentences(self) -> Sequence[str]:
        return self.analogies().words

    def score(self, vectors: Vectors) -> Score:
        task = self.analogies()
        x = vectors_of(vectors, task.words, self.name)
        missing, is_known = missing_texts(task.words, x), has_vector(x)[task.questions].all(axis=1)
        right, right_among_all = answer(x, task.questions)
        metrics = {"accuracy with a, b and c among the candidates": 100 * float(right_among_all.mean())}
        if missing and is_known.any():
            metrics["accuracy of known questions"] = 100 * float(right[is_known].mean())
        metrics |= {
            f"accuracy of {name}": 100 * float(right[task.category == number].mean())
            for number, name in enumerate(task.category_names)
            if (task.category == number).any()
        }
        return Score(
            "accuracy x100, nearest word to b - a + c",
            100 * float(right.mean()),
            len(right),
            metrics=metrics,
            facts={
                "similarity": "cosine of b - a + c, of normalized vectors; a, b and c are not candidates",
                "candidates": len(task.words),
                "known_questions": int(is_known.sum()),
                **missing_facts(missing),
            },
            warnings=missing_warnings(
                self.name, missing, f"{int((~is_known).sum()):,} of {len(right):,} questions count as wrong"
            ),
            evidence={"right": right},
        )

    def statistic(self, evidence: Mapping[str, np.ndarray], rows: np.ndarray) -> float:
        return 100 * float(evidence["right"][rows].mean())


def answer(x: np.ndarray, questions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Answer questions by the word nearest to b - a + c.

    Args:
        x: (w, d) vectors of all words; words with the zero vector are unknown, and are not candidates.
        questions: (n, 4) indices of a, b, c and the expected word.

    Returns:
        (n,) bool: True if the expected word is strictly nearer than every other word except a, b and c; and
        (n,) bool: the same with a, b and c among the candidates. Both are False for questions with an unknown
        word.
    """
    unit, is_known = unit_rows(x), has_vector(x)
    answers = [
        _answer_block(unit, is_known, block)
        for block in np.array_split(questions, -(-len(questions) * len(x) // _BLOCK))
    ]
    right, right_among_all = map(np.concatenate, zip(*answers, strict=True))
    answerable = is_known[questions].all(axis=1)
    return right & answerable, right_among_all & answerable


def _answer_block(
    unit: np.ndarray, is_known: np.ndarray, questions: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    rows, (a, b, c, expected) = np.arange(len(questions)), questions.T
    similarity = np.round((unit[b] - unit[a] + unit[c]) @ unit.T, _DECIMALS)
    similarity[:, ~is_known] = -np.inf
    of_expected = similarity[rows, expected]
    similarity[rows, expected] = -np.inf
    right_among_all = of_expected > similarity.max(axis=1)
    similarity[rows[:, None], questions[:, :3]] = -np.inf
    is_given = (questions[:, :3] == expected[:, None]).any(axis=1)
    return (of_expected > similarity.max(axis=1)) & ~is_given, right_among_all


def _categories(rows: TaskRows) -> tuple[np.ndarray, list[str]]:
    """Return (rows,) index of each row's category, -1 for none, and the categories' names."""
    if not rows.has("category"):
        return np.full(len(rows), -1), []
    codes, names = rows.codes("category")
    return codes, list(map(str, names))
