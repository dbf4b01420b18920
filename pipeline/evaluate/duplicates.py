"""Duplicate mining: are the most similar pairs among all texts those that mean the same? Without gold pairs: how many pairs are how alike, and the first of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from pydantic import Field

from pipeline.config import validated
from pipeline.errors import DataError
from pipeline.evaluate import TASKS, Score, Vectors
from pipeline.evaluate.metrics import average_precision, best_f1
from pipeline.evaluate.ranks import Mined, most_alike
from pipeline.evaluate.similarity import Similarity, vectors_of
from pipeline.evaluate.source import RowOptions, Rows, TaskFile, digest, name_of, open_file
from pipeline.settings import EvaluateSettings, TaskSettings
from pipeline.store.base import Store

THRESHOLDS = (0.7, 0.8, 0.9, 0.95, 0.99)
SHOWN = 20  # pairs in the facts
EXCERPT = 200  # characters of a text there
MOST_GOLD = 20_000_000  # gold pairs: 160 MB


class DuplicatesOptions(RowOptions):
    """Options of kind "duplicates"."""

    neighbours: int = Field(default=100, ge=1)
    """only the nearest so many of each text are looked at"""
    pairs: int = Field(default=500_000, ge=1)
    """at most so many pairs are kept, the most similar"""
    threshold: float = 0.9
    """without gold: the task's value is the number of pairs that are at least so similar"""


@dataclass(frozen=True)
class Texts:
    """Distinct texts. gold: ascending keys (smaller place * n + larger place) of the pairs that mean the same; None where nobody said."""

    texts: list[str]
    gold: np.ndarray | None
    missing: int


@TASKS.register("duplicates")
@dataclass(frozen=True)
class DuplicatesTask:
    """Roles sentence1, sentence2, label (1: duplicates; every other pair of the texts counts as none), or text, group (a group's texts are duplicates), or text.

    The value is average precision over the mined pairs, with gold pairs that were not mined counted as missed; options: see DuplicatesOptions.
    """

    kind: ClassVar[str] = "duplicates"
    name: str
    file: TaskFile
    similarity: Similarity
    options: DuplicatesOptions

    @classmethod
    def of(cls, source: TaskSettings, store: Store, path: str, settings: EvaluateSettings) -> Self:
        options = validated(DuplicatesOptions, source.options, f"{source.uri}: options")
        forms = [("sentence1", "sentence2", "label"), ("text", "group"), ("text",)]
        file = open_file(source, store, path, forms, split=options.split)
        task = cls(name_of(source, path), file, settings.similarity, options)
        task.texts()
        return task

    @property
    def digest(self) -> str:
        return digest(
            self.kind,
            self.name,
            self.file,
            similarity=self.similarity,
            **self.options.model_dump(exclude={"split"}),
        )

    def texts(self) -> Texts:
        """The distinct texts; DataError for fewer than two, or if gold was asked for and no pair of them is a duplicate."""
        rows = self.file.rows()
        texts = (
            _of_pairs(rows)
            if rows.has("label")
            else _of_groups(rows, self.file.where)
            if rows.has("group")
            else _plain(rows)
        )
        if len(texts.texts) < 2:
            raise DataError(
                self.file.where, "at least two different texts", f"{len(texts.texts)}", "give more texts"
            )
        if texts.gold is not None and not len(texts.gold):
            remedy = "give gold pairs, or name the role text alone"
            raise DataError(
                self.file.where,
                "two different texts that are duplicates",
                f"none among {len(texts.texts):,}",
                remedy,
            )
        return texts

    def sentences(self) -> Sequence[str]:
        return self.texts().texts

    def score(self, vectors: Vectors) -> Score:
        texts = self.texts()
        x = vectors_of(vectors, texts.texts, self.name)
        counted = () if texts.gold is not None else self._thresholds()
        mined = most_alike(self.similarity, x, self.options.neighbours, self.options.pairs, counted)
        facts = {
            "similarity": self.similarity,
            "texts": len(texts.texts),
            "missing_texts": texts.missing,
            "mined": len(mined.similarity),
            "neighbours": self.options.neighbours,
            "interval": "none: pairs that share texts are no independent rows",
        }
        return (
            self._counted(texts, mined, facts)
            if texts.gold is None
            else self._against(texts.gold, len(texts.texts), mined, facts)
        )

    def _against(self, gold: np.ndarray, count: int, mined: Mined, facts: dict[str, Any]) -> Score:
        right = np.isin(mined.places[:, 0] * count + mined.places[:, 1], gold, assume_unique=True)
        f1 = best_f1(mined.similarity, right, len(gold))
        figures = {
            "average precision": 100 * average_precision(mined.similarity, right, len(gold)),
            "F1": 100 * f1.value,
            "precision at best F1": 100 * f1.precision,
            "recall at best F1": 100 * f1.recall,
            "recall of all mined": 100 * float(right.sum() / len(gold)),
        }
        more = {"gold_pairs": len(gold), "threshold_f1": f1.threshold if np.isfinite(f1.threshold) else None}
        return Score(
            f"average precision x100 of mined pairs, {self.similarity}",
            figures["average precision"],
            len(gold),
            figures,
            facts | more,
        )

    def _counted(self, texts: Texts, mined: Mined, facts: dict[str, Any]) -> Score:
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
                mined.similarity[:SHOWN], mined.places[:SHOWN], strict=True
            )
        ]
        metric = (
            f"pairs of at least {self.options.threshold:g}, {self.similarity} (no gold: a count, no quality)"
        )
        return Score(
            metric,
            figures[f"pairs of at least {self.options.threshold:g}"],
            len(texts.texts),
            figures,
            facts | {"top": top},
        )

    def _thresholds(self) -> tuple[float, ...]:
        """Common ones mean something for cosine and angular similarity only."""
        usual = THRESHOLDS if self.similarity in ("cosine", "angular") else ()
        return tuple(sorted({*usual, self.options.threshold}))

    def statistic(self, evidence: Mapping[str, np.ndarray], rows: np.ndarray) -> float:
        """nan: its scores carry no evidence."""
        return float("nan")


def _of_pairs(rows: Rows) -> Texts:
    left, right = rows.texts("sentence1"), rows.texts("sentence2")
    place = {text: number for number, text in enumerate(dict.fromkeys([*left, *right]))}
    pairs = [(place[left[row]], place[right[row]]) for row in np.flatnonzero(rows.labels("label") == 1)]
    return Texts(
        list(place),
        _keys(np.array(pairs, np.int64).reshape(-1, 2), len(place)),
        rows.missing("sentence1", "sentence2"),
    )


def _of_groups(rows: Rows, where: str) -> Texts:
    texts, (groups, _) = rows.texts("text"), rows.codes("group")
    place = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    held = np.unique(np.stack([groups, [place[text] for text in texts]], axis=1)[groups >= 0], axis=0)
    members = np.split(held[:, 1], np.flatnonzero(np.diff(held[:, 0])) + 1)
    if (total := sum(len(each) * (len(each) - 1) // 2 for each in members)) > MOST_GOLD:
        raise DataError(
            where,
            f"at most {MOST_GOLD:,} pairs of one group",
            f"{total:,}",
            "a group is a set of texts that mean the same: name such a column",
        )
    pairs = [np.stack([each[places] for places in np.triu_indices(len(each), 1)], axis=1) for each in members]
    return Texts(list(place), _keys(np.concatenate(pairs), len(place)), rows.missing("text"))


def _plain(rows: Rows) -> Texts:
    return Texts(list(dict.fromkeys(rows.texts("text"))), None, rows.missing("text"))


def _keys(pairs: np.ndarray, count: int) -> np.ndarray:
    """Ascending distinct keys of pairs (p, 2); a text is no duplicate of itself."""
    pairs = np.sort(pairs[pairs[:, 0] != pairs[:, 1]], axis=1)
    return np.unique(pairs[:, 0] * count + pairs[:, 1])
