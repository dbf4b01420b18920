"""Base of evaluation tasks: the rows of one Parquet file, and a metric of their vectors."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, Self

import numpy as np

from pipeline.config import Settings, digest_of, validated
from pipeline.evaluate.source import RowOptions, TaskFile, TaskRoles, open_file
from pipeline.settings import EvaluateSettings, TaskSettings
from pipeline.store.base import Store

Similarity = Literal["cosine", "angular", "euclidean", "dot"]


class Vectors(Protocol):
    """Function that encodes n sentences: (n, d) float32, in order, with the candidate's transform applied."""

    def __call__(self, sentences: Sequence[str]) -> np.ndarray:
        """Encode the sentences."""


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


@dataclass(frozen=True)
class EvaluationTask(ABC):
    """A data set and its metric; an immutable value that holds settings, not rows, and can be pickled.

    Attributes:
        name: name of the task.
        file: its file.
        options: its own options.
        settings: settings of all tasks.
    """

    kind: ClassVar[str]
    description: ClassVar[str]
    """sentences above the results of this kind on the page"""
    quick: ClassVar[bool] = False
    """True if a score takes one pass over the rows, without a search or a training"""
    roles: ClassVar[TaskRoles]
    """columns that the file must have"""
    options_type: ClassVar[type[Settings]] = RowOptions
    score_settings: ClassVar[tuple[str, ...]] = ("similarity",)
    """settings of `evaluate` that change the score"""
    name: str
    file: TaskFile
    options: Settings
    settings: EvaluateSettings

    @classmethod
    def of(cls, source: TaskSettings, store: Store, path: str, settings: EvaluateSettings) -> Self:
        """Create the task for the Parquet file `path` of `store`, and check its rows.

        Raises:
            ConfigError: unknown options or roles.
            DataError: a missing column, a score out of range, a single class, or a similar defect of the
                data.
        """
        options = validated(cls.options_type, source.options, f"{source.uri}: options")
        split = options.split if isinstance(options, RowOptions) else None
        task = cls(
            source.name or path.rpartition("/")[2].removesuffix(".parquet"),
            open_file(source, store, path, cls.roles, split),
            options,
            settings,
        )
        task.sentences()
        return task

    @property
    def digest(self) -> str:
        """sha256 (hex) of everything but the vectors that changes the score.

        The name is part of it, because it is in warnings, names a single subset and determines the expected
        splits.
        """
        return digest_of(
            {
                "kind": self.kind,
                "name": self.name,
                **self.file.content(),
                **{name: getattr(self.settings, name) for name in self.score_settings},
                **self.options.model_dump(exclude={"split"}),
            }
        )

    @property
    def similarity(self) -> Similarity:
        """Similarity of two vectors."""
        return self.settings.similarity

    @abstractmethod
    def sentences(self) -> Sequence[str]:
        """Return every sentence whose vector is needed, maybe repeatedly; DataError for unsuitable rows."""

    @abstractmethod
    def score(self, vectors: Vectors) -> Score:
        """Score the vectors of a candidate."""

    @abstractmethod
    def statistic(self, evidence: Mapping[str, np.ndarray], rows: np.ndarray) -> float:
        """Compute `Score.value` on resampled rows, for the bootstrap.

        Args:
            evidence: `Score.evidence`.
            rows: indices into the evidence, with repetitions.

        Returns:
            The value, or nan if it is undefined for these rows.
        """
