"""Triplets: how often an anchor is closer to its positive than to its negative (Ein Dor et al. 2018)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pipeline.errors import DataError
from pipeline.evaluate import TASKS, EvaluationTask, Score, Vectors
from pipeline.evaluate.similarity import row_similarities, vectors_of
from pipeline.evaluate.source import TaskRoles

ROLES = ("anchor", "positive", "negative")


@TASKS.register("triplets")
@dataclass(frozen=True)
class TripletsTask(EvaluationTask):
    """Accuracy of triplets.

    Roles: anchor, positive, negative. The value is the proportion of triplets whose positive is strictly
    nearer; ties count as wrong. Options: split.
    """

    kind: ClassVar[str] = "triplets"
    description: ClassVar[str] = (
        "Proportion of triplets whose anchor is more similar to its positive than to its negative."
    )
    quick: ClassVar[bool] = True
    roles: ClassVar[TaskRoles] = TaskRoles(ROLES)

    def sentences(self) -> Sequence[str]:
        rows = self.file.rows()
        if not len(rows):
            raise DataError(self.file.where, "at least one triplet", "none", "use a file with triplets")
        return [text for role in ROLES for text in rows.texts(role)]

    def score(self, vectors: Vectors) -> Score:
        rows = self.file.rows()
        anchor, positive, negative = np.split(vectors_of(vectors, self.sentences(), self.name), 3)
        to_positive, to_negative = (
            row_similarities(self.similarity, anchor, other) for other in (positive, negative)
        )
        margin = to_positive - to_negative
        is_right, ties = margin > 0, int((margin == 0).sum())
        warning = (
            f"{self.name}: {ties:,} of {len(rows):,} triplets have equal similarities and count as wrong"
        )
        return Score(
            f"accuracy x100, {self.similarity}",
            100 * float(is_right.mean()),
            len(rows),
            metrics={"mean margin": float(margin.mean())},
            facts={
                "similarity": self.similarity,
                "ties": ties,
                "ties_count_as": "wrong",
                "missing_texts": rows.missing(*ROLES),
            },
            warnings=(warning,) if ties else (),
            evidence={"right": is_right},
        )

    def statistic(self, evidence: Mapping[str, np.ndarray], rows: np.ndarray) -> float:
        return 100 * float(evidence["right"][rows].mean())
