"""Scores of candidates on tasks. Every score is a small file, named by everything it depends on."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic_core import from_json, to_json

from pipeline.config import digest_of
from pipeline.evaluate import EvaluationTask, Score
from pipeline.flows.evaluate.candidates import Contender
from pipeline.flows.evaluate.sentences import SpaceVectors
from pipeline.flows.workers.tasks import PlainTask
from pipeline.post import Transform, load_transform
from pipeline.stats.tensors import pack, unpack
from pipeline.store.base import Store
from pipeline.store.once import remembered, stored_by_content
from pipeline.store.stored import FileRef, Stored

_VERSION = 1  # of the files and their computation; with another version candidates are scored again


class Result(Stored):
    """The result of a task for one space and transform. Undefined metrics are null."""

    version: int = _VERSION
    kind: str
    task_digest: str
    space_id: str
    transform_id: str | None
    numerics: dict[str, int]
    """sentences of the space by the numerics that computed their vectors"""
    metric: str
    value: float | None
    count: int
    figures: dict[str, float | None] = {}
    facts: dict[str, Any] = {}
    warnings: tuple[str, ...] = ()
    evidence: FileRef | None = None

    def score(self) -> Score:
        """Return the result as the task's Score, without the evidence."""
        return Score(
            self.metric, math.nan if self.value is None else self.value, self.count, facts=self.facts
        )


class Draws(Stored):
    """A candidate's metric on resampled rows of a task; null where it is undefined.

    The same index means the same rows for every candidate.
    """

    version: int = _VERSION
    values: tuple[float | None, ...]

    def numbers(self) -> np.ndarray:
        """Return (resamples,) float64, NaN where undefined."""
        return np.array(self.values, np.float64)


@dataclass(frozen=True)
class Scored:
    """A result and its draws; None if the task has no resamples, or none were requested."""

    result: Result
    draws: Draws | None


@dataclass(frozen=True)
class MeasuredTask:
    """A task and each candidate's result on it, in the order of the candidates."""

    task: EvaluationTask
    scored: tuple[Scored, ...]


@dataclass(frozen=True)
class Scoring:
    """One candidate to score on one task, with a number of resamples."""

    contender: Contender
    task: EvaluationTask
    vectors: SpaceVectors
    resamples: int
    seed: int

    @property
    def path(self) -> str:
        """Return the path of the result."""
        key = digest_of([_VERSION, self.task.digest, *self.contender.id])[:32]
        return f"results/{self.contender.space_id[:16]}/{key}.json"

    def draws_path(self, evidence: FileRef) -> str:
        """Return the path of the draws."""
        asked = [_VERSION, self.task.digest, evidence.sha256, self.resamples, self.seed]
        return f"draws/{self.contender.space_id[:16]}/{digest_of(asked)[:32]}.json"

    def done(self, store: Store) -> Scored | None:
        """Load the result of an earlier run, with its draws; None if incomplete."""
        result = Result.load_complete(store, self.path)
        if result is None or result.evidence is None or not self.resamples:
            return Scored(result, None) if result else None
        draws = Draws.load_intact(store, self.draws_path(result.evidence))
        return Scored(result, draws) if draws else None


@dataclass(frozen=True)
class ScoreTask(PlainTask[Scoring, Scored]):
    """Score a candidate on a task, and on resamples of its rows, unless the store has the results."""

    store: Store

    def work(self, scoring: Scoring) -> Scored:
        result = remembered(self.store, scoring.path, Result, lambda: self._scored(scoring))
        if (evidence := result.evidence) is None or not scoring.resamples:
            return Scored(result, None)
        path = scoring.draws_path(evidence)
        return Scored(result, remembered(self.store, path, Draws, lambda: self._drawn(scoring, evidence)))

    def _drawn(self, scoring: Scoring, reference: FileRef) -> Draws:
        from pipeline.evaluate.bootstrap import statistics

        evidence, _ = unpack(reference.read(self.store), kind="evidence")
        values = statistics(scoring.task, evidence, scoring.resamples, scoring.seed)
        return Draws(values=tuple(map(_number, values.tolist())))

    def _scored(self, scoring: Scoring) -> Result:
        contender, task, evidence = scoring.contender, scoring.task, None
        transform = load_transform(contender.transform.read(self.store)) if contender.transform else None
        vectors = _Transformed(scoring.vectors, transform)
        score = task.score(vectors)
        if score.evidence:
            arrays = {name: np.asarray(values) for name, values in score.evidence.items()}
            content, stem = pack(arrays, {"kind": "evidence"}), f"evidence/{contender.space_id[:16]}/rows"
            evidence = stored_by_content(self.store, content, stem, ".safetensors", rows=score.count)
        return Result(
            kind=task.kind,
            task_digest=task.digest,
            space_id=contender.space_id,
            transform_id=contender.transform_id,
            numerics=scoring.vectors.numerics(),
            metric=score.metric,
            value=_number(score.value),
            count=score.count,
            figures={name: _number(value) for name, value in score.figures.items()},
            facts=from_json(
                to_json(dict(score.facts), inf_nan_mode="null", fallback=lambda value: value.tolist())
            ),
            warnings=(*score.warnings, *vectors.warnings()),
            evidence=evidence,
        )


class _Transformed:
    """The vectors of a candidate, for a task.

    A sentence without a usable vector keeps the zero vector: its cosine with everything is 0.
    """

    def __init__(self, raw: SpaceVectors, transform: Transform | None) -> None:
        self._raw, self._transform, self._lost, self._alike = raw, transform, 0, 0

    def __call__(self, sentences: Sequence[str]) -> np.ndarray:
        vectors, lost = self._raw(sentences)
        if self._transform is not None:
            vectors = np.array(self._transform(vectors), np.float32)
            vectors[lost] = 0.0
        self._lost = max(self._lost, int(lost.sum()))
        if len(set(sentences)) > 1 and (vectors == vectors[0]).all():
            self._alike = len(sentences)
        return vectors

    def warnings(self) -> Iterator[str]:
        """Yield warnings about the vectors that were looked up."""
        if self._lost:
            yield (
                f"the encoder gave {self._lost:,} sentences no usable vector: they count as unlike everything"
            )
        if self._alike:
            yield f"all {self._alike:,} sentences have one and the same vector: the score is meaningless"


def _number(value: float) -> float | None:
    """Return None for NaN and infinity, which JSON does not have."""
    return float(value) if math.isfinite(value) else None
