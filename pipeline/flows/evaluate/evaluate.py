"""Evaluation of candidates on tasks.

Sentences are encoded once per space; results of earlier runs are reused.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from pipeline.config import digest_of, to_yaml
from pipeline.errors import ConfigError
from pipeline.evaluate import EvaluationTask
from pipeline.evaluate.tasks import Missing, select_tasks
from pipeline.flows.evaluate.candidates import Contender, contenders
from pipeline.flows.evaluate.disagreements import disagreements
from pipeline.flows.evaluate.geometry import measure_geometry
from pipeline.flows.evaluate.scoring import MeasuredTask, Scored, ScoreTask, Scoring
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
from pipeline.log import Stages, counted, packages, say
from pipeline.report.evaluation import Disagreement
from pipeline.settings import Job
from pipeline.stats.measured import GeometryReport
from pipeline.store.base import Store
from pipeline.store.store import open_store

Key = tuple[tuple[str, str | None], str]
"""(space and transform, task): candidates that share both share their scores"""

_FEW = 2_000_000  # sentences times resamples: scored in about two seconds
_PACKAGES = (*PACKAGES, "scikit-learn", "scipy")


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation.

    Attributes:
        id: digest of candidates and tasks, equal for equal evaluations.
        numerics: for each candidate, the number of its sentence vectors by numerics.
        encoded: number of sentences encoded in this run.
        settings: YAML.
        speeds: for each candidate, sentences per second of one worker; None if it was never measured.
    """

    id: str
    root: str
    candidates: tuple[Contender, ...]
    measured: tuple[MeasuredTask, ...]
    missing: tuple[Missing, ...]
    numerics: tuple[dict[str, int], ...]
    encoded: int
    resamples: int
    settings: str
    packages: dict[str, str]
    speeds: tuple[float | None, ...]
    disagreements: tuple[Disagreement, ...]
    geometry: GeometryReport | None


def wanted(job: Job, *, geometry: bool = False) -> bool:
    """Return whether candidates are to be evaluated.

    Raises:
        ConfigError: there are candidates, but nothing to evaluate them on.
    """
    settings = job.evaluate
    measures = settings.tasks is not None or bool(settings.own) or geometry
    if settings.candidates and not measures:
        raise ConfigError(
            "evaluate.candidates",
            "tasks to measure the candidates on",
            "none",
            "set evaluate.tasks to a folder of tasks or evaluate.own to your own data, or give --geometry",
        )
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
    work = _Work.of(job, store, stages, selected.tasks, candidates)
    sampled = job.evaluate.geometry.sentences * len(work.vectors) if geometry else 0
    with (
        local_workers(work.is_small(sampled), job.cluster.patience_s) as local,
        connect(job.cluster, stages, verbose=verbose, local=local) as workers,
    ):
        run = Run(job, store, workers, stages)
        work.encode(run)
        measured = work.score(run)
        shape = measure_geometry(run, candidates) if geometry else None
    asked = [
        [[*each.id, each.name] for each in candidates],
        [[task.name, task.digest] for task in selected.tasks],
        [each.name for each in selected.missing],
        job.evaluate.bootstrap,
        job.evaluate.seed,
        shape and shape.content_id(),
    ]
    return Evaluation(
        id=digest_of(asked)[:24],
        root=store.uri,
        candidates=candidates,
        measured=measured,
        missing=selected.missing,
        numerics=tuple(work.vectors[each.space_id].numerics() for each in candidates),
        encoded=sum(map(len, work.new.values())),
        resamples=job.evaluate.bootstrap,
        settings=to_yaml(job),
        packages=packages(*_PACKAGES),
        speeds=tuple(sentences_per_s(store, each.space_id) for each in candidates),
        disagreements=disagreements(measured, [each.name for each in candidates], store),
        geometry=shape,
    )


@dataclass(frozen=True)
class _Work:
    """The work of one evaluation.

    Attributes:
        store: of the evaluations.
        tasks: to score on.
        candidates: to score.
        sizes: number of sentences of each task.
        vectors: of each space, by its id.
        new: sentences that each space lacks at the beginning.
    """

    job: Job
    store: Store
    tasks: Sequence[EvaluationTask]
    candidates: Sequence[Contender]
    sizes: dict[str, int]
    vectors: dict[str, SpaceVectors]
    new: dict[str, Sentences]

    @classmethod
    def of(
        cls,
        job: Job,
        store: Store,
        stages: Stages,
        tasks: Sequence[EvaluationTask],
        candidates: Sequence[Contender],
    ) -> "_Work":
        """Read the tasks, and find the sentences that are not encoded yet."""
        sizes, given = dict[str, int](), list[str]()
        with stages("read tasks", unit="sentences") as bar:
            for task in tasks:
                texts = task.sentences()
                sizes[task.name] = len(texts)
                given += texts
                bar.add(len(texts))
            sentences = Sentences.of(given)
            bar.stage.note = f"{len(sentences):,} distinct, of {counted(len(tasks), 'task')}"
        vectors = {each.space_id: kept_vectors(store, each) for each in candidates}
        new = {space_id: sentences.without(held.keys) for space_id, held in vectors.items()}
        return cls(job, store, tasks, candidates, sizes, vectors, new)

    def is_small(self, sampled: int) -> bool:
        """Return whether one process of this machine finishes before Ray would have started.

        That is so if there are few sentences to encode and to train classifiers on.

        Args:
            sampled: number of sentences to measure geometry on.
        """
        if not is_local(self.job.cluster) or not self.job.cluster.small_rows:
            return False
        trained = sum(
            self.sizes[scoring.task.name]
            for scoring in self._scorings().values()
            if scoring.task.kind == "transfer" and scoring.done(self.store) is None
        )
        return trained + sampled + sum(map(len, self.new.values())) <= self.job.cluster.small_rows

    def encode(self, run: Run) -> None:
        """Encode all sentences; candidates of one space share their vectors."""
        first = {each.space_id: each for each in reversed(self.candidates)}
        for space_id, held in list(self.vectors.items()):
            if len(new := self.new[space_id]):
                self.vectors[space_id] = encode_sentences(run, new, held, first[space_id])

    def score(self, run: Run) -> tuple[MeasuredTask, ...]:
        """Score every candidate on every task, unless an earlier run did.

        Tasks that train classifiers come first, then larger tasks before smaller ones.
        """
        items = self._scorings()
        with run.stages("score", len(items), "figures") as bar:
            made = {key: done for key, item in items.items() if (done := item.done(self.store)) is not None}
            todo = sorted(
                (key for key in items if key not in made),
                key=lambda key: (items[key].task.kind == "transfer", self.sizes[key[1]]),
                reverse=True,
            )
            bar.skip(len(made))
            for number, scored in self._scored([items[key] for key in todo], run.workers):
                made[todo[number]] = scored
                bar.add(1)
        return tuple(
            MeasuredTask(task, tuple(made[each.id, task.name] for each in self.candidates))
            for task in self.tasks
        )

    def _scored(self, items: Sequence[Scoring], workers: Workers) -> Iterator[tuple[int, Scored]]:
        """Score on the cluster, or in this process if that takes less time than to start a worker."""
        task = ScoreTask(self.store)
        size = sum(self.sizes[item.task.name] * (1 + item.resamples) for item in items)
        if all(item.task.quick for item in items) and size <= _FEW:
            return enumerate(map(task.start(), items))
        return workers.map_units(task, items, Pool(max(1, min(workers.cpus, len(items)))))

    def _scorings(self) -> dict[Key, Scoring]:
        settings = self.job.evaluate
        return {
            (each.id, task.name): Scoring(
                each, task, self.vectors[each.space_id], settings.bootstrap, settings.seed
            )
            for each, task in product(self.candidates, self.tasks)
        }
