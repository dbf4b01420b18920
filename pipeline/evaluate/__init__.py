"""Evaluation tasks for sentence vectors, one kind of task per file; the registry finds them.

Numerics only: tasks do not know how or where vectors are computed. From outside, import the names below,
`tasks.select_tasks`, and the modules `bootstrap` and `mteb`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, Self

import numpy as np

from pipeline.registry import Registry
from pipeline.settings import EvaluateSettings, TaskSettings
from pipeline.store.base import Store


class Vectors(Protocol):
    """Function that encodes n sentences: (n, d) float32, in order, with the candidate's transform applied."""

    def __call__(self, sentences: Sequence[str]) -> np.ndarray: ...


@dataclass(frozen=True)
class Score:
    """Result of a task for one candidate; all but `evidence` is stored as JSON."""

    metric: str
    """metric of `value`, with everything that makes two values comparable: "Spearman x100, cosine, all" """
    value: float
    """larger is better"""
    count: int
    """number of pairs, triplets, queries or texts"""
    figures: Mapping[str, float] = field(default_factory=dict)
    """further metrics by name: Pearson, each subset, the chosen strength ..."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """further information by name: solver, aggregation, similarity, threshold ..."""
    warnings: tuple[str, ...] = ()
    evidence: Mapping[str, np.ndarray] = field(default_factory=dict)
    """arrays of length `count` (predictions, gold, correctness ...) from which `EvaluationTask.statistic`
    computes `value` for a resample; resamples keep the size of each "stratum" (subset, fold); empty if no
    resample is meaningful"""


class EvaluationTask(Protocol):
    """A data set and its metric; an immutable value that holds settings, not rows, and can be pickled."""

    kind: ClassVar[str]
    description: ClassVar[str]
    """sentences above the results of this kind on the page"""
    quick: ClassVar[bool]
    """whether a score takes one pass over the rows, without a search or a training"""

    @property
    def name(self) -> str: ...

    @property
    def digest(self) -> str:
        """sha256 of everything but the vectors that changes the score: data, roles, options, similarity,
        seed.
        """
        ...

    @classmethod
    def of(cls, source: TaskSettings, store: Store, path: str, settings: EvaluateSettings) -> Self:
        """Create the task for the Parquet file `path` of `store`.

        Raises:
            ConfigError: unknown options or roles.
            DataError: a missing column, a score out of range, a single class, or a similar defect of the
                data.
        """
        ...

    def sentences(self) -> Sequence[str]:
        """Return every sentence whose vector is needed; may contain repetitions."""
        ...

    def score(self, vectors: Vectors) -> Score: ...

    def statistic(self, evidence: Mapping[str, np.ndarray], rows: np.ndarray) -> float:
        """Compute `Score.value` on resampled rows, for the bootstrap.

        Args:
            evidence: `Score.evidence`.
            rows: indices into the evidence, with repetitions.

        Returns:
            The value, or nan if it is undefined for these rows.
        """
        ...


TASKS: Registry[type[EvaluationTask]] = Registry("kind of task", __name__)
