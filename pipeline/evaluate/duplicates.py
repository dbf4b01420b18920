"""Duplicate mining: whether the most similar pairs of all texts mean the same.

Without gold pairs, the number of pairs above similarity thresholds, and the most similar ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from pipeline.errors import DataError
from pipeline.evaluate import TASKS, EvaluationTask, Score, Vectors
from pipeline.evaluate.metrics import average_precision, best_f1
from pipeline.evaluate.ranks import MinedPairs, most_similar
from pipeline.evaluate.similarity import vectors_of
from pipeline.evaluate.source import RowOptions, TaskRoles, TaskRows

THRESHOLDS = (0.7, 0.8, 0.9, 0.95, 0.99)
SHOWN = 20  # most similar pairs in the result
EXCERPT = 200  # characters of a text in the result
MOST_GOLD = 20_000_000  # gold pairs: 160 MB


class DuplicatesOptions(RowOptions):
    """Options of tasks of kind "duplicates"."""

    neighbours: int = Field(default=100, ge=1)
    """number of nearest neighbours of each text that are compared"""
    pairs: int = Field(default=500_000, ge=1)
    """largest number of pairs to keep, the most similar ones"""
    threshold: float = 0.9
    """without gold pairs: similarity from which pairs are counted for the task's value"""


@dataclass(frozen=True)
class DistinctTexts:
    """Distinct texts and the pairs of them that mean the same.

    Attributes:
        texts: n distinct texts.
        gold: ascending keys (smaller index * n + larger index) of pairs that mean the same; None if unknown.
        missing: number of missing texts.
    """

    texts: list[str]
    gold: np.ndarray | None
    missing: int


@TASKS.register("duplicates")
@dataclass(frozen=True)
class DuplicatesTask(EvaluationTask):
    """Mining of duplicates among texts.

    Roles: sentence1, sentence2, label (1 for duplicates; every other pair of the texts counts as different),
    or text, group (texts of a group are duplicates), or text alone. The value is the average precision of the
    mined pairs; gold pairs that were not mined count as missed. Options: see DuplicatesOptions.
    """

    kind: ClassVar[str] = "duplicates"
    description: ClassVar[str] = (
        "Ranking of pairs with the same meaning among all pairs of texts. Without known pairs, pairs are "
        "only counted."
    )
    roles: ClassVar[TaskRoles] = TaskRoles(("sentence1", "sentence2", "label"), ("text", "group"), ("text",))
    options_type: ClassVar[type[DuplicatesOptions]] = DuplicatesOptions
    options: DuplicatesOptions

    def texts(self) -> DistinctTexts:
        """Return the distinct texts; DataError if there are fewer than two, or no duplicates among them."""
        rows = self.file.rows()
        if rows.has("label"):
            texts = _of_pairs(rows)
        elif rows.has("group"):
            texts = _of_groups(rows, self.file.where)
        else:
            texts = DistinctTexts(list(dict.fromkeys(rows.texts("text"))), None, rows.missing("text"))
        if len(texts.texts) < 2:
            raise DataError(
                self.file.where, "at least two different texts", f"{len(texts.texts)}", "use more texts"
            )
        if texts.gold is not None and not len(texts.gold):
            raise DataError(
                self.file.where,
                "two different texts that are duplicates",
                f"none among {len(texts.texts):,}",
                "add gold pairs, or set the role text only",
            )
        return texts

    def sentences(self) -> Sequence[str]:
        return self.texts().texts

    def score(self, vectors: Vectors) -> Score:
        texts = self.texts()
        x = vectors_of(vectors, texts.texts, self.name)
        mined = most_similar(
            self.similarity,
            x,
            self.options.neighbours,
            self.options.pairs,
            thresholds=self._thresholds() if texts.gold is None else (),
        )
        facts = {
            "similarity": self.similarity,
            "texts": len(texts.texts),
            "missing_texts": texts.missing,
            "mined": len(mined.similarity),
            "neighbours": self.options.neighbours,
            "interval": "none: pairs that share texts are no independent rows",
        }
        if texts.gold is None:
            return self._counted(texts, mined, facts)
        return self._against(texts.gold, len(texts.texts), mined, facts)

    def _against(self, gold: np.ndarray, count: int, mined: MinedPairs, facts: dict[str, Any]) -> Score:
        right = np.isin(mined.indices[:, 0] * count + mined.indices[:, 1], gold, assume_unique=True)
        f1 = best_f1(mined.similarity, right, len(gold))
        figures = {
            "average precision": 100 * average_precision(mined.similarity, right, len(gold)),
            "F1": 100 * f1.value,
            "precision at best F1": 100 * f1.precision,
            "recall at best F1": 100 * f1.recall,
            "recall of all mined": 100 * float(right.sum() / len(gold)),
        }
        return Score(
            f"average precision x100 of mined pairs, {self.similarity}",
            figures["average precision"],
            len(gold),
            figures,
            facts
            | {"gold_pairs": len(gold), "threshold_f1": f1.threshold if np.isfinite(f1.threshold) else None},
        )

    def _counted(self, texts: DistinctTexts, mined: MinedPairs, facts: dict[str, Any]) -> Score:
        figures = {
            f"pairs of at least {bound:g}": float(count)
            for bound, count in zip(self._thresholds(), mined.above, strict=True)
        }
        top = [
            {
                "similarity": float(similarity),
                "text1": texts.texts[first][:EXCERPT],
                "text2": texts.texts[second][:EXCERPT],
            }
            for similarity, (first, second) in zip(
                mined.similarity[:SHOWN], mined.indices[:SHOWN], strict=True
            )
        ]
        pairs = f"pairs of at least {self.options.threshold:g}"
        return Score(
            f"{pairs}, {self.similarity} (no gold: a count, no quality)",
            figures[pairs],
            len(texts.texts),
            figures,
            facts | {"top": top},
        )

    def _thresholds(self) -> tuple[float, ...]:
        """Return the thresholds; the usual ones apply to cosine and angular similarity only."""
        usual = THRESHOLDS if self.similarity in ("cosine", "angular") else ()
        return tuple(sorted({*usual, self.options.threshold}))

    def statistic(self, evidence: Mapping[str, np.ndarray], rows: np.ndarray) -> float:
        """Return nan, because the scores have no evidence."""
        return float("nan")


def _of_pairs(rows: TaskRows) -> DistinctTexts:
    left, right = rows.texts("sentence1"), rows.texts("sentence2")
    index = {text: number for number, text in enumerate(dict.fromkeys([*left, *right]))}
    pairs = [(index[left[row]], index[right[row]]) for row in np.flatnonzero(rows.labels("label") == 1)]
    return DistinctTexts(
        list(index),
        _keys(np.array(pairs, np.int64).reshape(-1, 2), len(index)),
        rows.missing("sentence1", "sentence2"),
    )


def _of_groups(rows: TaskRows, where: str) -> DistinctTexts:
    texts, (groups, _) = rows.texts("text"), rows.codes("group")
    index = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    held = np.unique(np.stack([groups, [index[text] for text in texts]], axis=1)[groups >= 0], axis=0)
    members = np.split(held[:, 1], np.flatnonzero(np.diff(held[:, 0])) + 1)
    if (total := sum(len(each) * (len(each) - 1) // 2 for each in members)) > MOST_GOLD:
        raise DataError(
            where,
            f"at most {MOST_GOLD:,} pairs of texts within groups",
            f"{total:,}",
            "use a column whose groups are texts that mean the same",
        )
    pairs = [
        np.stack([each[indices] for indices in np.triu_indices(len(each), 1)], axis=1) for each in members
    ]
    return DistinctTexts(list(index), _keys(np.concatenate(pairs), len(index)), rows.missing("text"))


def _keys(pairs: np.ndarray, count: int) -> np.ndarray:
    """Return ascending distinct keys of pairs (p, 2), without pairs of a text with itself."""
    pairs = np.sort(pairs[pairs[:, 0] != pairs[:, 1]], axis=1)
    return np.unique(pairs[:, 0] * count + pairs[:, 1])
