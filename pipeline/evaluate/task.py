"""Base of evaluation tasks: the rows of one Parquet file, and a metric of their vectors."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, Self

import numpy as np

from pipeline.config import Settings, digest_of, validated
from pipeline.evaluate.source import RowOptions, TaskFile, TaskRoles, open_file
from pipeline.settings import EvaluateSettings, TaskSettings
from pipeline.store.files.base import Store

Similarity = Literal["cosine", "angular", "euclidean", "manhattan", "dot"]


class Vectors(Protocol):
    """Function that encodes n sentences: (n, d) float32, in order, with the candidate's transform applied.

    TF-IDF returns a sparse matrix of scipy instead, for the kinds of tasks that accept it.
    """

    def __call__(self, sentences: Sequence[str]) -> np.ndarray:
        """Encode the sentences."""


@dataclass(frozen=True)
class Score:
    """Result of a task for one candidate; all but `evidence` is stored as JSON."""

    metric: str
    """name of the metric of `value`, such as "Spearman x100, cosine, all"; values with equal names can be
    compared"""
    value: float
    """larger is better"""
    count: int
    """number of pairs, triplets, queries or texts"""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """further metrics by name, such as Pearson or the Spearman correlation of a subset"""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """further information by name, such as the solver, the similarity or a threshold"""
    warnings: tuple[str, ...] = ()
    evidence: Mapping[str, np.ndarray] = field(default_factory=dict)
    """arrays of length `count`, such as predictions and gold labels, from which `EvaluationTask.statistic`
    computes `value` on a bootstrap resample. The array "stratum", if there is one, has each row's
    subset or fold; resamples keep the size of each. Empty if resampling is not meaningful for the task"""


@dataclass(frozen=True)
class EvaluationTask(ABC):
    """A data set and its metric. Immutable and picklable: it holds settings and the file, not the rows."""

    kind: ClassVar[str]
    description: ClassVar[str]
    """explanation of this kind of task, shown above its results on the report page"""
    quick: ClassVar[bool] = False
    """True if scoring is one pass over the rows, without a search or training a classifier"""
    trains: ClassVar[bool] = False
    """True if scoring trains a classifier or a regressor"""
    accepts_sparse: ClassVar[bool] = False
    """True if it can score sparse vectors, by cosine"""
    roles: ClassVar[TaskRoles]
    """roles of the columns that the file must have, and optional roles"""
    options_type: ClassVar[type[Settings]] = RowOptions
    score_settings: ClassVar[tuple[str, ...]] = ("similarity",)
    """settings of `evaluate` that change the score"""
    name: str
    """name of the task"""
    file: TaskFile
    """file of its rows"""
    options: Settings
    """options of this task, of type `options_type`"""
    settings: EvaluateSettings
    """settings that all tasks share"""

    @classmethod
    def of(cls, source: TaskSettings, store: Store, path: str, settings: EvaluateSettings) -> Self:
        """Create the task for the Parquet file `path` of `store`, and check its rows.

        Raises:
            ConfigError: unknown options or roles.
            DataError: the file lacks a column, or its rows cannot be scored (a score out of range, a single
                class ...).
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
        """sha256 (hex) of everything that changes the score, except the vectors.

        The name is included, because the stored result contains it, and because transfer tasks look up the
        published splits of their data set by it.
        """
        return digest_of(
            {
                "kind": self.kind,
                "name": self.name,
                **self.file.content(),
                **{name: getattr(self.settings, name) for name in self.score_settings},
                **self.options.model_dump(exclude={"split"}),  # the digest of the file's content covers it
            }
        )

    @property
    def similarity(self) -> Similarity:
        """Similarity measure of two vectors."""
        return self.settings.similarity or "cosine"

    @abstractmethod
    def sentences(self) -> Sequence[str]:
        """Return the sentences whose vectors `score` needs, maybe repeated. Raises DataError."""

    def queries(self) -> Sequence[str]:
        """Return the sentences that are queries; they may have a prompt of their own."""
        return ()

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
