"""Columns of the tables: how the value of a row is read from the answer of `manta evaluate`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

TRANSFER = ("CR", "TREC", "MRPC")
_SPACE = {
    "alignment": "alignment",
    "uniformity": "pair_uniformity",
    "anisotropy": "anisotropy",
    "edit correlation": "edit_correlation",
}
_LAYER = {
    "word cosine": "word_cosine",
    "self-similarity, adjusted": "self_similarity_adjusted",
    "intra-sentence similarity, adjusted": "intra_similarity_adjusted",
    "explained variance, adjusted": "explained_variance_adjusted",
}


@dataclass(frozen=True)
class Column:
    """What a column measures.

    Attributes:
        tasks: tasks of `manta evaluate`, whose scores are averaged.
        aggregation: aggregation over the subsets of a task.
        metric: name of a metric of `--geometry`, in place of tasks.
    """

    tasks: tuple[str, ...] = ()
    aggregation: str = "all"
    metric: str | None = None

    @classmethod
    def of(cls, name: str) -> "Column":
        """Return the column of that name: a metric, `transfer`, a task, or a task and `wmean`."""
        if name in _SPACE | _LAYER:
            return cls(metric=(_SPACE | _LAYER)[name])
        if name == "transfer":
            return cls(TRANSFER)
        task, _, aggregation = name.partition(" ")
        return cls((task,), aggregation or "all")

    def value(self, facts: Mapping[str, Any], layer: int | None) -> float:
        """Read the value of the only candidate of an evaluation.

        Args:
            facts: answer of `manta evaluate`.
            layer: number of the layer that a metric is of; None for the sentence vectors.
        """
        if self.metric is None:
            return mean(self._score(facts["results"], task) for task in self.tasks)
        geometry = facts["geometry"]
        measured = geometry["series"][0]["space"] if layer is None else _level(geometry, layer)
        return float(measured["metrics"][self.metric]["value"])

    def _score(self, results: Sequence[Mapping[str, Any]], task: str) -> float:
        return float(next(each["value"] for each in results if each["task"] == task))

    def interval(self, facts: Mapping[str, Any]) -> tuple[float, float] | None:
        """Return the interval of the difference of two candidates; None for a column without a bootstrap."""
        if self.metric is not None:
            return None
        (found,) = facts["differences"] if len(self.tasks) == 1 else facts["average_differences"]
        return found["low"], found["high"]


def _level(geometry: Mapping[str, Any], layer: int) -> Mapping[str, Any]:
    (levels,) = (each["levels"] for each in geometry["depths"])
    return next(level for level in levels if level["number"] == layer)
