"""Pair classification: rank pairs by similarity; pairs labelled as equal in meaning should come first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pipeline.errors import DataError
from pipeline.evaluate import TASKS, EvaluationTask, Score, Vectors
from pipeline.evaluate.metrics import average_precision, best_accuracy, best_f1, roc_auc
from pipeline.evaluate.similarity import row_similarities, vectors_of
from pipeline.evaluate.source import TaskRoles, TaskRows


@TASKS.register("pairs")
@dataclass(frozen=True)
class PairsTask(EvaluationTask):
    """Classification of pairs by similarity.

    Roles: sentence1, sentence2, label (1 for the same meaning). The value is average precision. Options:
    split.
    """

    kind: ClassVar[str] = "pairs"
    description: ClassVar[str] = (
        "Ranking of pairs with the same meaning above the others by similarity; 100 is perfect."
    )
    quick: ClassVar[bool] = True
    roles: ClassVar[TaskRoles] = TaskRoles(("sentence1", "sentence2", "label"))

    def _labelled_rows(self) -> tuple[TaskRows, int]:
        """Return the labelled rows and the number of unlabelled rows. Raises DataError for a single class."""
        rows = self.file.rows()
        labelled = rows.take(~np.isnan(rows.labels("label")))
        positives = int(labelled.labels("label").sum())
        if positives in (0, len(labelled)):
            raise DataError(
                self.file.where,
                "pairs labelled 1 and pairs labelled 0",
                f"one class only: {positives:,} of {len(labelled):,} are 1",
                "use pairs of both kinds",
            )
        return labelled, len(rows) - len(labelled)

    def sentences(self) -> Sequence[str]:
        rows, _ = self._labelled_rows()
        return [*rows.texts("sentence1"), *rows.texts("sentence2")]

    def score(self, vectors: Vectors) -> Score:
        rows, unlabelled = self._labelled_rows()
        x = vectors_of(vectors, [*rows.texts("sentence1"), *rows.texts("sentence2")], self.name)
        predicted, positive = row_similarities(self.similarity, *np.split(x, 2)), rows.labels("label") == 1
        accuracy, f1 = best_accuracy(predicted, positive), best_f1(predicted, positive)
        metrics = {
            "average precision": 100 * average_precision(predicted, positive),
            "AUC": 100 * roc_auc(predicted, positive),
            "accuracy": 100 * accuracy.value,
            "F1": 100 * f1.value,
            "precision at best F1": 100 * f1.precision,
            "recall at best F1": 100 * f1.recall,
        }
        warning = f"{self.name}: every pair has the same {self.similarity} similarity"
        return Score(
            f"average precision x100, {self.similarity}",
            metrics["average precision"],
            len(rows),
            metrics=metrics,
            facts={
                "similarity": self.similarity,
                "positives": int(positive.sum()),
                "negatives": int((~positive).sum()),
                "without_label": unlabelled,
                "missing_texts": rows.missing("sentence1", "sentence2"),
                "threshold_accuracy": _finite(accuracy.threshold),
                "threshold_f1": _finite(f1.threshold),
                "thresholds": "chosen on these pairs themselves: accuracy and F1 are the best possible, "
                "not what new pairs would give",
            },
            warnings=() if np.ptp(predicted) else (warning,),
            evidence={"prediction": predicted, "positive": positive},
        )

    def statistic(self, evidence: Mapping[str, np.ndarray], rows: np.ndarray) -> float:
        positive = evidence["positive"][rows]
        if not positive.any():
            return float("nan")
        return 100 * average_precision(evidence["prediction"][rows], positive)


def _finite(threshold: float) -> float | None:
    """Return None instead of infinity (the threshold above every pair), which JSON does not have."""
    return threshold if np.isfinite(threshold) else None
