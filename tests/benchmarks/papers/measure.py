"""Columns of the tables: how the value of a row is read from the answer of `manta evaluate`."""

from collections.abc import Mapping
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

    def value(self, facts: Mapping[str, Any], candidate: str, layer: int | None) -> float:
        """Read the value of a candidate of an evaluation.

        Args:
            facts: answer of `manta evaluate`.
            candidate: name of the candidate.
            layer: number of the layer that a metric is of; None for the sentence vectors.
        """
        if self.metric is None:
            found = {
                each["task"]: each["value"] for each in facts["results"] if each["candidate"] == candidate
            }
            return mean(float(found[task]) for task in self.tasks)
        geometry = facts["geometry"]
        named = geometry["series"] if layer is None else geometry["depths"]
        (one,) = [each for each in named if each["name"] == candidate] or named  # layers share their encoder
        levels = {each["number"]: each for each in one.get("levels", ())}
        measured = one["space"] if layer is None else levels[layer]
        return float(measured["figures"][self.metric]["value"])

    def interval(self, facts: Mapping[str, Any], candidate: str) -> tuple[float, float]:
        """Return the interval of the difference of a candidate from the first one."""
        differences = facts["differences"] if len(self.tasks) == 1 else facts["average_differences"]
        (found,) = (each for each in differences if each["candidate"] == candidate)
        return found["low"], found["high"]
