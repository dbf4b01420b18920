"""Score candidates on tasks. Every result is a small file, named by a digest of everything it depends on."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import Field
from pydantic_core import from_json, to_json

from pipeline.config import digest_of
from pipeline.evaluate import EvaluationTask, Score
from pipeline.evaluate.retrieval import RetrievalTask
from pipeline.evaluate.similarity import is_sparse
from pipeline.evaluate.source import TEXT_ROLES
from pipeline.evaluate.vocabulary import WITHOUT_VECTOR
from pipeline.flows.evaluate.candidates import ResolvedCandidate
from pipeline.flows.evaluate.fits import TaskFit
from pipeline.flows.evaluate.sentences import SpaceVectors, SparseVectors
from pipeline.flows.workers.tasks import PlainTask
from pipeline.stats.tensors import pack, unpack
from pipeline.store.files.base import Store
from pipeline.store.records.sealed_json import FileRef, Stored
from pipeline.store.records.write_once import load_or_make, store_by_content
from pipeline.transforms.transform import Transform, load_transform

_VERSION = 1  # version of files and computation; raise it to score candidates again


class Result(Stored):
    """The result of a task for one space and transform. Undefined metrics are null."""

    version: int = _VERSION
    kind: str
    task_digest: str
    space_id: str
    transform_id: str | None
    numerics: dict[str, int]
    """number of sentence vectors of the space by the numerics_id that computed them"""
    metric: str
    value: float | None
    count: int
    metrics: dict[str, float | None] = Field({}, alias="figures")
    """`Score.metrics`"""
    facts: dict[str, Any] = {}
    warnings: tuple[str, ...] = ()
    evidence: FileRef | None = None
    """arrays over the task's rows, to resample the metric from; None if resampling is not meaningful"""

    def score(self) -> Score:
        """Return the result as the task's Score, without the evidence."""
        return Score(
            self.metric, math.nan if self.value is None else self.value, self.count, facts=self.facts
        )


class Draws(Stored):
    """A candidate's metric on bootstrap resamples of a task's rows; null where it is undefined.

    Resample i has the same rows for every candidate.
    """

    version: int = _VERSION
    values: tuple[float | None, ...]

    def numbers(self) -> np.ndarray:
        """Return (resamples,) float64, NaN where undefined."""
        return np.array(self.values, np.float64)


@dataclass(frozen=True)
class ResampledResult:
    """A result, with the metric on resamples."""

    result: Result
    draws: Draws | None
    """None if resampling is not meaningful for the task, or was not requested"""


@dataclass(frozen=True)
class MeasuredTask:
    """A task and each candidate's result on it, in the order of the candidates."""

    task: EvaluationTask
    results: tuple[ResampledResult, ...]


@dataclass(frozen=True)
class Scoring:
    """A candidate to score on a task."""

    candidate: ResolvedCandidate
    task: EvaluationTask
    vectors: SpaceVectors | SparseVectors
    """raw vectors of the task's sentences, before the candidate's transform"""
    resamples: int
    """number of bootstrap resamples; 0 for none"""
    seed: int
    """seed of the resamples"""
    fit: TaskFit | None = None
    """the transform to fit for the task, if the candidate has none"""
    queries: SpaceVectors | SparseVectors | None = None
    """raw vectors of the task's queries, if these have a prompt of their own"""

    @property
    def path(self) -> str:
        """Return the path of the result."""
        fit = [self.fit.id] if self.fit else []
        queries = [self.queries.space_id] if isinstance(self.queries, SpaceVectors) else []
        key = digest_of([_VERSION, self.task.digest, *self.candidate.id, *fit, *queries])[:32]
        return f"results/{self.candidate.space_id[:16]}/{key}.json"

    def draws_path(self, result: Result) -> str | None:
        """Return the path of the draws; None if the rows of the task are not resampled."""
        if result.evidence is None or not self.resamples:
            return None
        identity = [_VERSION, self.task.digest, result.evidence.sha256, self.resamples, self.seed]
        return f"draws/{self.candidate.space_id[:16]}/{digest_of(identity)[:32]}.json"

    def load_result(self, store: Store) -> ResampledResult | None:
        """Load the result of an earlier run with its draws; None if a file is missing or truncated."""
        result = Result.load_complete(store, self.path)
        if result is None:
            return None
        if (draws_path := self.draws_path(result)) is None:
            return ResampledResult(result, None)
        draws = Draws.load_intact(store, draws_path)
        return None if draws is None else ResampledResult(result, draws)


@dataclass(frozen=True)
class ScoreTask(PlainTask[Scoring, ResampledResult]):
    """Score a candidate on a task, and on resamples of its rows, unless the store has the results."""

    store: Store

    def work(self, scoring: Scoring) -> ResampledResult:
        result = load_or_make(self.store, scoring.path, Result, lambda: self._score(scoring))
        if (draws_path := scoring.draws_path(result)) is None:
            return ResampledResult(result, None)
        draws = load_or_make(self.store, draws_path, Draws, lambda: self._draw(scoring, result))
        return ResampledResult(result, draws)

    def _draw(self, scoring: Scoring, result: Result) -> Draws:
        """Compute the metric on resamples of the rows that the result keeps as evidence."""
        from pipeline.evaluate.bootstrap import statistics

        assert result.evidence is not None, "draws_path returns None for results without evidence"
        rows, _ = unpack(result.evidence.read(self.store), kind="evidence")
        values = statistics(scoring.task, rows, scoring.resamples, scoring.seed)
        return Draws(values=tuple(map(_number, values.tolist())))

    def _transform(self, scoring: Scoring) -> tuple[Transform | None, dict[str, str]]:
        """Return the candidate's transform, if any, and facts about one that is fitted for the task."""
        if scoring.fit is not None:
            assert isinstance(scoring.vectors, SpaceVectors), "the settings refuse to fit on sparse vectors"
            transform = scoring.fit.fitted(self.store, scoring.vectors, scoring.task)
            return transform, scoring.fit.facts(transform)
        file = scoring.candidate.transform
        return (None if file is None else load_transform(file.read(self.store))), {}

    def _score(self, scoring: Scoring) -> Result:
        candidate, task, evidence = scoring.candidate, scoring.task, None
        transform, fit_facts = self._transform(scoring)
        vectors = _TransformedVectors(scoring.vectors, transform)
        if scoring.queries is not None and isinstance(task, RetrievalTask):
            score = task.score(vectors, _TransformedVectors(scoring.queries, transform))
        else:
            score = task.score(vectors)
        facts = {**score.facts, **fit_facts}
        if score.evidence:
            arrays = {name: np.asarray(values) for name, values in score.evidence.items()}
            content, stem = pack(arrays, {"kind": "evidence"}), f"evidence/{candidate.space_id[:16]}/rows"
            evidence = store_by_content(self.store, content, stem, ".safetensors", rows=score.count)
        return Result(
            kind=task.kind,
            task_digest=task.digest,
            space_id=candidate.space_id,
            transform_id=None if transform is None else transform.transform_id,
            numerics=scoring.vectors.numerics(),
            metric=score.metric,
            value=_number(score.value),
            count=score.count,
            metrics={name: _number(value) for name, value in score.metrics.items()},
            facts=from_json(to_json(facts, inf_nan_mode="null", fallback=lambda value: value.tolist())),
            warnings=(
                *score.warnings,
                *_blank_texts(task, score),
                *vectors.warnings(score),
                *_shortage(task, transform),
            ),
            evidence=evidence,
        )


class _TransformedVectors:
    """A function from sentences to the vectors of a candidate, which also collects warnings.

    Sentences without a usable vector have the zero vector even after the transform, so their cosines are 0.
    """

    def __init__(self, raw: SpaceVectors | SparseVectors, transform: Transform | None) -> None:
        self._raw, self._transform = raw, transform
        self._unusable = 0  # number of sentences without a usable vector
        self._identical = 0  # number of sentences, if all have the same vector

    def __call__(self, sentences: Sequence[str]) -> np.ndarray:
        vectors, unusable = self._raw(sentences)
        if is_sparse(vectors):  # sparse vectors have no transform, and their tasks count zero vectors
            return vectors
        if self._transform is not None:
            vectors = np.array(self._transform(vectors), np.float32)
            vectors[unusable] = 0.0
        self._unusable = max(self._unusable, int(unusable.sum()))
        if len(set(sentences)) > 1 and (vectors == vectors[0]).all():
            self._identical = len(sentences)
        return vectors

    def warnings(self, score: Score) -> Iterator[str]:
        """Yield warnings about the vectors that were looked up, except those that the task itself gives."""
        if self._unusable and not score.facts.get(WITHOUT_VECTOR):
            yield (f"the encoder gave {self._unusable:,} sentences no usable vector: their cosines are 0")
        if self._identical:
            yield f"all {self._identical:,} sentences have one and the same vector: the score is meaningless"


def _blank_texts(task: EvaluationTask, score: Score) -> Iterator[str]:
    """Warn of texts that are missing or blank, in the rows that the task used if it counted them."""
    if (blank := score.facts.get("missing_texts")) is None:
        rows = task.file.rows()
        blank = rows.missing(*filter(rows.has, TEXT_ROLES))
    if blank:
        yield f"{task.name}: {blank:,} texts are missing or blank; each counts as the text of one blank"


def _shortage(task: EvaluationTask, transform: Transform | None) -> tuple[str, ...]:
    """Warn of a transform that was fitted on too few rows."""
    if transform is None or transform.shortage is None:
        return ()
    return (f"{task.name}: the transform had too little to be fitted on: {transform.shortage}",)


def _number(value: float) -> float | None:
    """Return None for NaN and infinity, which JSON does not have."""
    return float(value) if math.isfinite(value) else None
