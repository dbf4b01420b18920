"""Evaluation of candidates on tasks.

Sentences are encoded once per space; results of earlier runs are reused.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from pipeline.config import digest_of, to_yaml
from pipeline.errors import ConfigError
from pipeline.evaluate import EvaluationTask
from pipeline.evaluate.tasks import Missing, Selection, TaskAverage, averages, select_tasks
from pipeline.flows.evaluate.candidates import Contender, contenders
from pipeline.flows.evaluate.disagreements import disagreements
from pipeline.flows.evaluate.geometry import measure_geometry
from pipeline.flows.evaluate.scoring import Scored, ScoreTask, Scoring
from pipeline.flows.evaluate.sentences import (
    Sentences,
    SpaceVectors,
    encode_sentences,
    kept_vectors,
    sentences_per_s,
)
from pipeline.flows.night.candidate import PACKAGES
from pipeline.flows.run import Run
from pipeline.flows.workers.cluster import connect, is_local, local_workers
from pipeline.flows.workers.tasks import Pool
from pipeline.flows.workers.workers import Workers
from pipeline.log import Running, Stages, packages, say
from pipeline.report.disagreements import Disagreement
from pipeline.report.evaluation import Section
from pipeline.report.geometry import sections as geometry_sections
from pipeline.settings import Job
from pipeline.stats.measured import GeometryReport
from pipeline.store.base import Store
from pipeline.store.store import open_store

Key = tuple[tuple[str, str | None], str]
"""(space and transform, task): candidates that share both share their scores"""

_FEW = 2_000_000  # sentences times resamples: scored in about two seconds
_PACKAGES = (*PACKAGES, "scikit-learn", "scipy")


@dataclass(frozen=True)
class MeasuredTask:
    """A task and each candidate's result on it, in the order of the candidates."""

    task: EvaluationTask
    scored: tuple[Scored, ...]


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation. id: sha256 of candidates and tasks, equal for equal evaluations."""

    id: str
    root: str
    candidates: tuple[Contender, ...]
    measured: tuple[MeasuredTask, ...]
    missing: tuple[Missing, ...]
    averages: tuple[tuple[TaskAverage, ...], ...]
    """for each candidate, over the same tasks"""
    numerics: tuple[dict[str, int], ...]
    """for each candidate, its sentence vectors by numerics"""
    encoded: int
    """sentences encoded in this run"""
    resamples: int
    settings: str
    """YAML"""
    packages: dict[str, str]
    speeds: tuple[float | None, ...] = ()
    """for each candidate, sentences per second of one worker; None if it was never measured"""
    disagreements: tuple[Disagreement, ...] = ()
    geometry: Any = None
    """JSON object"""
    sections: tuple[Section, ...] = ()
    """further sections of the page"""


def wanted(job: Job, *, geometry: bool = False) -> bool:
    """Return whether candidates are to be evaluated.

    Raises:
        ConfigError: there are candidates, but nothing to evaluate them on.
    """
    settings = job.evaluate
    measures = settings.tasks is not None or bool(settings.own) or geometry
    if settings.candidates and not measures:
        remedy = (
            "set evaluate.tasks to a folder of tasks or evaluate.own to your own data, or give --geometry"
        )
        raise ConfigError("evaluate.candidates", "tasks to measure the candidates on", "none", remedy)
    return measures


def evaluate(job: Job, stages: Stages, *, geometry: bool = False, verbose: bool = False) -> Evaluation:
    """Evaluate the job's candidates on the job's tasks.

    Raises:
        ConfigError, DataError, ModelError, SpaceMismatch: as in `contenders` and `select_tasks`.
    """
    store = open_store(f"{open_store(job.evaluate.root or job.release.root).uri}/evaluations")
    candidates = contenders(job, store)
    selected = select_tasks(job.evaluate)
    if selected.missing:
        say(f"missing tasks, listed at the end: {len(selected.missing)}")
    work = _Evaluating(job, store, stages, selected.tasks, candidates, geometry)
    work.look()
    with (
        local_workers(work.is_small, job.cluster.patience_s) as local,
        connect(job.cluster, stages, verbose=verbose, local=local) as workers,
    ):
        run = Run(job, store, workers, stages)
        work.encode(run)
        measured = work.measured(workers)
        shape = measure_geometry(run, candidates) if geometry else None
    return Evaluation(
        id=_identity(job, selected, candidates, shape),
        root=store.uri,
        candidates=candidates,
        measured=measured,
        missing=selected.missing,
        averages=_averages(measured, len(candidates)),
        numerics=tuple(work.vectors[each.space_id].numerics() for each in candidates),
        encoded=sum(map(len, work.new.values())),
        speeds=tuple(sentences_per_s(store, each.space_id) for each in candidates),
        disagreements=disagreements(
            selected.tasks, [each.scored for each in measured], [each.name for each in candidates], store
        ),
        resamples=job.evaluate.bootstrap,
        settings=to_yaml(job),
        packages=packages(*_PACKAGES),
        geometry=shape.model_dump(mode="json") if shape else None,
        sections=geometry_sections(shape) if shape else (),
    )


def _identity(
    job: Job, selected: Selection, candidates: Sequence[Contender], shape: GeometryReport | None
) -> str:
    asked = (
        [[*each.id, each.name] for each in candidates],
        [[task.name, task.digest] for task in selected.tasks],
        [each.name for each in selected.missing],
    )
    return digest_of([*asked, job.evaluate.bootstrap, job.evaluate.seed, shape and shape.content_id()])[:24]


@dataclass
class _Evaluating:
    """The state of one evaluation.

    Attributes:
        job: settings.
        store: of the evaluations.
        stages: progress.
        tasks: to score on.
        candidates: to score.
        geometry: whether geometry is measured too.
        vectors: of each space, by its id.
        new: the sentences that each space lacks.
        sizes: sentences of each task.
    """

    job: Job
    store: Store
    stages: Stages
    tasks: Sequence[EvaluationTask]
    candidates: Sequence[Contender]
    geometry: bool
    vectors: dict[str, SpaceVectors] = field(default_factory=dict)
    new: dict[str, Sentences] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)

    def look(self) -> None:
        """Read the tasks, and find the sentences that are not encoded yet."""
        with self.stages("read tasks", unit="sentences") as bar:
            sentences = Sentences.of(self._sentences(bar))
            bar.stage.note = f"{len(sentences):,} distinct, of {len(self.tasks)} tasks"
        self.vectors = {each.space_id: kept_vectors(self.store, each) for each in self.candidates}
        self.new = {space_id: sentences.without(vectors.known) for space_id, vectors in self.vectors.items()}

    def _sentences(self, bar: Running) -> Iterator[str]:
        for task in self.tasks:
            given = task.sentences()
            self.sizes[task.name] = len(given)
            bar.add(len(given))
            yield from given

    @property
    def is_small(self) -> bool:
        """Return whether one process of this machine finishes before Ray would have started.

        That is so if there are few sentences to encode, to measure geometry on, and to train classifiers on.
        """
        if not is_local(self.job.cluster) or not self.job.cluster.small_rows:
            return False
        trained = sum(
            self.sizes[scoring.task.name]
            for scoring in self._scorings().values()
            if scoring.task.kind == "transfer" and scoring.done(self.store) is None
        )
        sampled = self.job.evaluate.geometry.sentences * len(self.vectors) if self.geometry else 0
        return trained + sampled + sum(map(len, self.new.values())) <= self.job.cluster.small_rows

    def encode(self, run: Run) -> None:
        """Encode all sentences; candidates of one space share their vectors."""
        for space_id, held in list(self.vectors.items()):
            contender = next(each for each in self.candidates if each.space_id == space_id)
            if len(self.new[space_id]):
                self.vectors[space_id] = encode_sentences(run, self.new[space_id], held, contender)

    def measured(self, workers: Workers) -> tuple[MeasuredTask, ...]:
        """Score every candidate on every task, unless an earlier run did.

        Tasks that train classifiers come first, then larger tasks before smaller ones.
        """
        items = self._scorings()
        with self.stages("score", len(items), "figures") as bar:
            made = {
                key: scored for key, item in items.items() if (scored := item.done(self.store)) is not None
            }
            todo = sorted(
                (key for key in items if key not in made),
                key=lambda key: (items[key].task.kind == "transfer", self.sizes[key[1]]),
                reverse=True,
            )
            bar.skip(len(made))
            for number, scored in self._scored([items[key] for key in todo], workers):
                made[todo[number]] = scored
                bar.add(1)
        return tuple(
            MeasuredTask(task, tuple(made[each.id, task.name] for each in self.candidates))
            for task in self.tasks
        )

    def _scored(self, items: Sequence[Scoring], workers: Workers) -> Iterator[tuple[int, Scored]]:
        """Score on the cluster, or in this process if that takes less time than to start a worker."""
        task = ScoreTask(self.store)
        if (
            all(item.task.quick for item in items)
            and sum(self.sizes[item.task.name] * (1 + item.resamples) for item in items) <= _FEW
        ):
            work = task.start()
            return ((number, work(item)) for number, item in enumerate(items))
        return workers.map_units(task, items, Pool(max(1, min(workers.cpus, len(items)))))

    def _scorings(self) -> dict[Key, Scoring]:
        settings, pairs = self.job.evaluate, product(self.candidates, self.tasks)
        return {
            (each.id, task.name): Scoring(
                each, task, self.vectors[each.space_id], settings.bootstrap, settings.seed
            )
            for each, task in pairs
        }


def _averages(measured: Sequence[MeasuredTask], candidates: int) -> tuple[tuple[TaskAverage, ...], ...]:
    """Return each candidate's averages."""
    return tuple(
        averages({each.task.name: each.scored[index].result.score() for each in measured})
        for index in range(candidates)
    )
