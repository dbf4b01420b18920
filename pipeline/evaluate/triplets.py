"""Triplets: whether the anchor is more similar to its positive than to its negative (Ein Dor et al. 2018)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from pipeline.config import validated
from pipeline.errors import DataError
from pipeline.evaluate import TASKS, Score, Vectors
from pipeline.evaluate.similarity import Similarity, paired, vectors_of
from pipeline.evaluate.source import RowOptions, TaskFile, digest, name_of, open_file
from pipeline.settings import EvaluateSettings, TaskSettings
from pipeline.store.base import Store

ROLES = ("anchor", "positive", "negative")


@TASKS.register("triplets")
@dataclass(frozen=True)
class TripletsTask:
    """Accuracy of triplets.

    Roles: anchor, positive, negative. The value is the proportion of triplets whose positive is strictly
    nearer; ties count as wrong. Options: split.
    """

    kind: ClassVar[str] = "triplets"
    description: ClassVar[str] = (
        "Proportion of triplets whose anchor is more similar to its positive than to its negative."
    )
    quick: ClassVar[bool] = True
    name: str
    file: TaskFile
    similarity: Similarity

    @classmethod
    def of(cls, source: TaskSettings, store: Store, path: str, settings: EvaluateSettings) -> Self:
        options = validated(RowOptions, source.options, f"{source.uri}: options")
        file = open_file(source, store, path, [ROLES], split=options.split)
        task = cls(name_of(source, path), file, settings.similarity)
        if not task.sentences():
            raise DataError(file.where, "at least one triplet", "none", "use a file with triplets")
        return task

    @property
    def digest(self) -> str:
        return digest(self.kind, self.name, self.file, similarity=self.similarity)

    def sentences(self) -> Sequence[str]:
        rows = self.file.rows()
        return [text for role in ROLES for text in rows.texts(role)]

    def score(self, vectors: Vectors) -> Score:
        rows = self.file.rows()
        anchor, positive, negative = np.split(vectors_of(vectors, self.sentences(), self.name), 3)
        margin = paired(self.similarity, anchor, positive) - paired(self.similarity, anchor, negative)
        right, ties = margin > 0, int((margin == 0).sum())
        facts = {
            "similarity": self.similarity,
            "ties": ties,
            "ties_count_as": "wrong",
            "missing_texts": rows.missing(*ROLES),
        }
        warnings: tuple[str, ...] = ()
        if ties:
            counts = f"{ties:,} of {len(rows):,} triplets"
            warnings = (f"{self.name}: {counts} have equal similarities and count as wrong",)
        return Score(
            f"accuracy x100, {self.similarity}",
            100 * float(right.mean()),
            len(rows),
            {"mean margin": float(margin.mean())},
            facts,
            warnings,
            {"right": right},
        )

    def statistic(self, evidence: Mapping[str, np.ndarray], rows: np.ndarray) -> float:
        return 100 * float(evidence["right"][rows].mean())
