"""Duplicate mining: rank all pairs of texts by similarity, and compare the most similar ones with gold pairs.

Without gold pairs, the task only counts the pairs above similarity thresholds and lists the most similar.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from pipeline.errors import DataError
from pipeline.evaluate import TASKS, EvaluationTask, Score, Vectors
from pipeline.evaluate.exact_ranks import MinedPairs, most_similar
from pipeline.evaluate.metrics import average_precision, best_f1
from pipeline.evaluate.similarity import vectors_of
from pipeline.evaluate.source import RowOptions, TaskRoles, TaskRows

THRESHOLDS = (0.7, 0.8, 0.9, 0.95, 0.99)  # for each, pairs of at least this similarity are counted
PAIRS_SHOWN = 20  # number of most similar pairs in the result
EXCERPT_CHARACTERS = 200  # characters shown of each text of these pairs
MAX_GOLD_PAIRS = 20_000_000  # 160 MB


class DuplicatesOptions(RowOptions):
    """Options of tasks of kind "duplicates"."""

    neighbours: int = Field(default=100, ge=1)
    """number of nearest neighbours with which each text can form a pair"""
    pairs: int = Field(default=500_000, ge=1)
    """largest number of pairs to keep, the most similar ones"""
    threshold: float = 0.9
    """without gold pairs: the task's value is the number of pairs of at least this similarity"""


@dataclass(frozen=True)
class DistinctTexts:
    """Distinct texts, and the pairs that mean the same."""

    texts: list[str]
    """n distinct texts"""
    gold: np.ndarray | None
    """ascending keys (smaller index * n + larger index) of pairs that mean the same; None if unknown"""
    missing: int
    """number of missing texts"""


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
        """Return the distinct texts. Raises DataError for fewer than two, or no or too many gold pairs."""
        rows = self.file.rows()
        if rows.has("label"):
            texts = _texts_of_pairs(rows)
        elif rows.has("group"):
            texts = _texts_of_groups(rows, self.file.where)
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
            return self._count_pairs(texts, mined, facts)
        return self._compare_with_gold(texts.gold, len(texts.texts), mined, facts)

    def _compare_with_gold(
        self, gold: np.ndarray, text_count: int, mined: MinedPairs, facts: dict[str, Any]
    ) -> Score:
        keys = mined.indices[:, 0] * text_count + mined.indices[:, 1]
        is_gold = np.isin(keys, gold, assume_unique=True)
        f1 = best_f1(mined.similarity, is_gold, len(gold))
        metrics = {
            "average precision": 100 * average_precision(mined.similarity, is_gold, len(gold)),
            "F1": 100 * f1.value,
            "precision at best F1": 100 * f1.precision,
            "recall at best F1": 100 * f1.recall,
            "recall of all mined": 100 * float(is_gold.sum() / len(gold)),
        }
        return Score(
            f"average precision x100 of mined pairs, {self.similarity}",
            metrics["average precision"],
            len(gold),
            metrics,
            facts
            | {"gold_pairs": len(gold), "threshold_f1": f1.threshold if np.isfinite(f1.threshold) else None},
        )

    def _count_pairs(self, texts: DistinctTexts, mined: MinedPairs, facts: dict[str, Any]) -> Score:
        metrics = {
            f"pairs of at least {bound:g}": float(count)
            for bound, count in zip(self._thresholds(), mined.counts_above, strict=True)
        }
        most_similar_pairs = [
            {
                "similarity": float(similarity),
                "text1": texts.texts[first][:EXCERPT_CHARACTERS],
                "text2": texts.texts[second][:EXCERPT_CHARACTERS],
            }
            for similarity, (first, second) in zip(
                mined.similarity[:PAIRS_SHOWN], mined.indices[:PAIRS_SHOWN], strict=True
            )
        ]
        metric = f"pairs of at least {self.options.threshold:g}"
        return Score(
            f"{metric}, {self.similarity} (no gold: a count, no quality)",
            metrics[metric],
            len(texts.texts),
            metrics,
            facts | {"top": most_similar_pairs},
        )

    def _thresholds(self) -> tuple[float, ...]:
        """Return the threshold of the options, and for cosine and angular similarity also `THRESHOLDS`."""
        common = THRESHOLDS if self.similarity in ("cosine", "angular") else ()
        return tuple(sorted({*common, self.options.threshold}))

    def statistic(self, evidence: Mapping[str, np.ndarray], rows: np.ndarray) -> float:
        """Return nan: the scores have no evidence to resample."""
        return float("nan")


def _texts_of_pairs(rows: TaskRows) -> DistinctTexts:
    left, right = rows.texts("sentence1"), rows.texts("sentence2")
    index = {text: number for number, text in enumerate(dict.fromkeys([*left, *right]))}
    pairs = [(index[left[row]], index[right[row]]) for row in np.flatnonzero(rows.labels("label") == 1)]
    return DistinctTexts(
        list(index),
        _pair_keys(np.array(pairs, np.int64).reshape(-1, 2), len(index)),
        rows.missing("sentence1", "sentence2"),
    )


def _texts_of_groups(rows: TaskRows, where: str) -> DistinctTexts:
    texts, (groups, _) = rows.texts("text"), rows.codes("group")
    index = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    memberships = np.unique(np.stack([groups, [index[text] for text in texts]], axis=1)[groups >= 0], axis=0)
    members = np.split(memberships[:, 1], np.flatnonzero(np.diff(memberships[:, 0])) + 1)  # texts by group
    if (total := sum(len(group) * (len(group) - 1) // 2 for group in members)) > MAX_GOLD_PAIRS:
        raise DataError(
            where,
            f"at most {MAX_GOLD_PAIRS:,} pairs of texts within groups",
            f"{total:,}",
            "use a column whose groups are texts that mean the same",
        )
    pairs = [
        np.stack([group[indices] for indices in np.triu_indices(len(group), 1)], axis=1) for group in members
    ]
    return DistinctTexts(list(index), _pair_keys(np.concatenate(pairs), len(index)), rows.missing("text"))


def _pair_keys(pairs: np.ndarray, count: int) -> np.ndarray:
    """Return ascending distinct keys of pairs (p, 2) of `count` texts; omit pairs of a text with itself."""
    pairs = np.sort(pairs[pairs[:, 0] != pairs[:, 1]], axis=1)
    return np.unique(pairs[:, 0] * count + pairs[:, 1])
