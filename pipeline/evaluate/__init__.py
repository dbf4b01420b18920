"""Tasks that say how good sentence vectors are. One file per kind of task; the registry finds it. Numerics alone: who encodes, and where, is not known here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, Self

import numpy as np

from pipeline.registry import Registry
from pipeline.settings import EvaluateSettings, TaskSettings
from pipeline.store.base import Store


class Vectors(Protocol):
    """The vectors of a candidate: (n, d) float32 for n sentences, in order; its transform, if it has one, is already applied."""

    def __call__(self, sentences: Sequence[str]) -> np.ndarray: ...


@dataclass(frozen=True)
class Score:
    """What a task found for one candidate. All but `evidence` goes into JSON."""

    metric: str
    """of `value`, with everything that makes two figures comparable: "Spearman x100, cosine, all" """
    value: float
    """larger is better"""
    count: int
    """pairs, triplets, queries or texts behind it"""
    figures: Mapping[str, float] = field(default_factory=dict)
    """further figures by name: Pearson, each subset, the chosen strength ..."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """what else a reader must know: solver, aggregation, similarity, threshold ..."""
    warnings: tuple[str, ...] = ()
    evidence: Mapping[str, np.ndarray] = field(default_factory=dict)
    """arrays of length `count` (predictions, gold, correctness ...): what `Task.statistic` needs to know `value` for a resample. With "stratum" among them (subset,
    fold), a resample keeps each stratum's size. Empty where no resample makes sense: such a value has no interval"""


class Task(Protocol):
    """A data set and how it is scored. A value: pickled, it travels to a worker, and holds settings, not rows."""

    kind: ClassVar[str]

    @property
    def name(self) -> str: ...

    @property
    def digest(self) -> str:
        """sha256 of whatever changes the score beside the vectors: data, roles, options, similarity, seed ..."""
        ...

    @classmethod
    def of(cls, source: TaskSettings, store: Store, path: str, settings: EvaluateSettings) -> Self:
        """The task over the Parquet file `path` of `store`. DataError for a missing column, a score out of range, one class only ...:
        where, expected, found, what to do.
        """
        ...

    def sentences(self) -> Sequence[str]:
        """Every sentence that it needs a vector of, repeats allowed."""
        ...

    def score(self, vectors: Vectors) -> Score: ...

    def statistic(self, evidence: Mapping[str, np.ndarray], rows: np.ndarray) -> float:
        """`Score.value` of the resampled rows (places in the evidence, repeats allowed): what the bootstrap computes. nan where it is not defined for them."""
        ...


TASKS: Registry[type[Task]] = Registry("kind of task", __name__)
