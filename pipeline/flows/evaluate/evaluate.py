"""Evaluate candidates on tasks.

Sentences are encoded once for each vector space. Vectors and scores of earlier runs are reused.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from pipeline.config import Settings, digest_of, to_yaml
from pipeline.errors import ConfigError
from pipeline.evaluate import EvaluationTask
from pipeline.evaluate.mask_words import MaskWordsReport
from pipeline.evaluate.tasks import MissingTask, Selection, select_tasks
from pipeline.flows.evaluate.candidates import ResolvedCandidate, check_sparse, resolve_candidates
from pipeline.flows.evaluate.disagreements import disagreements
from pipeline.flows.evaluate.fits import PlannedFits, plan_fits
from pipeline.flows.evaluate.geometry import measure_geometry
from pipeline.flows.evaluate.mask_words import read_mask_words
from pipeline.flows.evaluate.retrieval_examples import retrieval_examples
from pipeline.flows.evaluate.scoring import MeasuredTask, ResampledResult, ScoreTask, Scoring
from pipeline.flows.evaluate.sentences import (
    Sentences,
    SpaceVectors,
    SparseVectors,
    encode_sentences,
    load_vectors,
    sentences_per_s,
)
from pipeline.flows.evaluate.token_bias import measure_token_bias
from pipeline.flows.night.candidate import PACKAGES
from pipeline.flows.run import Run
from pipeline.flows.workers.cluster import connect, is_local, local_workers
from pipeline.flows.workers.tasks import Pool
from pipeline.flows.workers.workers import Workers
from pipeline.log import Stages, counted, packages, say
from pipeline.report.evaluation_report import Disagreement, RetrievalExample
from pipeline.settings import Job
from pipeline.stats.encoder_geometry import GeometryReport
from pipeline.stats.token_bias import NamedTokenBias
from pipeline.store.base import Store
from pipeline.store.store import open_store

Key = tuple[tuple[str, str | None], str]
"""(ids of space and transform, name of the task): candidates with equal ids share their scores"""

_QUICK_ROWS = 2_000_000  # sentences times resamples that one process scores in about two seconds
_PACKAGES = (*PACKAGES, "scikit-learn", "scipy")


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation.

    Attributes:
        id: digest of candidates, tasks and their settings, equal for equal evaluations.
        root: URI of the folder that holds all evaluations.
        candidates: the candidates.
        measured: the tasks, with the results of all candidates.
        missing: requested tasks whose files are missing.
        numerics: for each candidate, the number of its sentence vectors by numerics_id.
        encoded: number of sentences encoded in this run.
        resamples: number of bootstrap resamples.
        settings: settings of the job, as YAML.
        packages: versions of packages.
        speeds: for each candidate, sentences per second of one worker; None if it was never measured.
        disagreements: pairs on which candidates differ most.
        retrieved: examples of what candidates retrieve.
        geometry: metrics of the vector spaces; None if not requested.
        mask_words: words at the masks of templates; None if not requested.
        token_bias: bias of the tables of token embeddings; empty if not requested.
    """

    id: str
    root: str
    candidates: tuple[ResolvedCandidate, ...]
    measured: tuple[MeasuredTask, ...]
    missing: tuple[MissingTask, ...]
    numerics: tuple[dict[str, int], ...]
    encoded: int
    resamples: int
    settings: str
    packages: dict[str, str]
    speeds: tuple[float | None, ...]
    disagreements: tuple[Disagreement, ...]
    retrieved: tuple[RetrievalExample, ...]
    geometry: GeometryReport | None
    mask_words: MaskWordsReport | None
    token_bias: tuple[NamedTokenBias, ...]


def compares_candidates(job: Job, *, analyses: bool = False) -> bool:
    """Return whether candidates are evaluated: on tasks, or by an analysis that the command line asks for.

    Raises:
        ConfigError: there are candidates, but neither tasks nor an analysis to evaluate them by.
    """
    settings = job.evaluate
    is_measured = settings.tasks is not None or bool(settings.own) or analyses
    if settings.candidates and not is_measured:
        raise ConfigError(
            "evaluate.candidates",
            "tasks to evaluate the candidates on",
            "none",
            "set evaluate.tasks to a folder of tasks or evaluate.own to your own data, or give --geometry or "
            "--mask-words",
        )
    return is_measured


def evaluate(
    job: Job, stages: Stages, *, geometry: bool = False, mask_words: bool = False, verbose: bool = False
) -> Evaluation:
    """Evaluate the job's candidates on the job's tasks.

    Args:
        geometry: measure the geometry of the candidates' vectors, too.
        mask_words: read the candidates that pool a mask token by words, too.

    Raises:
        ConfigError, DataError, ModelError, SpaceMismatch: as in `resolve_candidates` and `select_tasks`.
    """
    store = open_store(f"{open_store(job.evaluate.root or job.release.root).uri}/evaluations")
    candidates, selected = resolve_candidates(job, store), select_tasks(job.evaluate)
    if selected.missing:
        say(f"missing tasks, listed at the end: {len(selected.missing)}")
    check_sparse(candidates, selected.tasks, job.evaluate.similarity, analyses=geometry or mask_words)
    work = _Work.read(job, store, stages, selected.tasks, candidates)
    sampled = (geometry + mask_words) * job.evaluate.geometry.sentences * len(work.vectors)
    with (
        local_workers(work.is_small(sampled), job.cluster.patience_s) as local,
        connect(job.cluster, stages, verbose=verbose, local=local) as workers,
    ):
        run = Run(job, store, workers, stages)
        mask_words_report = read_mask_words(run, candidates) if mask_words else None
        work.encode(run)
        measured = work.score(run)
        geometry_report = measure_geometry(run, candidates) if geometry else None
        wants_bias = geometry and job.evaluate.geometry.token_bias
        token_bias = measure_token_bias(run, candidates) if wants_bias else ()
    names = [each.name for each in candidates]
    words = [mask_words_report] if mask_words_report else []
    reports = [geometry_report, *words, *token_bias]
    return Evaluation(
        id=_evaluation_id(job, candidates, selected, reports),
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
        disagreements=disagreements(measured, names, store),
        retrieved=retrieval_examples(measured, names, store),
        geometry=geometry_report,
        mask_words=mask_words_report,
        token_bias=token_bias,
    )


def _evaluation_id(
    job: Job,
    candidates: Sequence[ResolvedCandidate],
    selected: Selection,
    reports: Sequence[Settings | None],
) -> str:
    """Return a digest of everything that the results depend on.

    Args:
        reports: the report on vectors, None if it was not wanted; then those that were.
    """
    identity = [
        [[*each.id, each.name] for each in candidates],
        [[task.name, task.digest] for task in selected.tasks],
        [each.name for each in selected.missing],
        job.evaluate.bootstrap,
        job.evaluate.seed,
        *(report and report.content_id() for report in reports),
    ]
    return digest_of(identity)[:24]


@dataclass(frozen=True)
class _Work:
    """The work of one evaluation: sentences to encode, and candidates to score on tasks.

    Attributes:
        job: settings of the job.
        store: store of the evaluations.
        tasks: the tasks.
        candidates: the candidates.
        sizes: number of sentences of each task, by its name.
        vectors: sentence vectors of each space, by space_id; `encode` adds the new ones.
        new: by space_id, the sentences that no earlier evaluation has encoded.
        fits: transforms to fit for single tasks.
    """

    job: Job
    store: Store
    tasks: Sequence[EvaluationTask]
    candidates: Sequence[ResolvedCandidate]
    sizes: dict[str, int]
    vectors: dict[str, SpaceVectors | SparseVectors]
    new: dict[str, Sentences]
    fits: PlannedFits

    @classmethod
    def read(
        cls,
        job: Job,
        store: Store,
        stages: Stages,
        tasks: Sequence[EvaluationTask],
        candidates: Sequence[ResolvedCandidate],
    ) -> "_Work":
        """Read the tasks, and find the sentences that are not encoded yet."""
        sizes, all_texts = dict[str, int](), list[str]()
        with stages("read tasks", unit="sentences") as bar:
            for task in tasks:
                texts = task.sentences()
                sizes[task.name] = len(texts)
                all_texts += texts
                bar.add(len(texts))
            sentences, fits = Sentences.of(all_texts), plan_fits(candidates, tasks)
            bar.stage.note = f"{len(sentences):,} distinct, of {counted(len(tasks), 'task')}"
        vectors: dict[str, SpaceVectors | SparseVectors] = {
            each.space_id: load_vectors(store, each) if each.tfidf is None else SparseVectors(each.tfidf)
            for each in candidates
        }
        new = {
            space_id: _joined(sentences, fits.texts.get(space_id)).without(encoded.keys)
            for space_id, encoded in vectors.items()
            if isinstance(encoded, SpaceVectors)
        }
        return cls(job, store, tasks, candidates, sizes, vectors, new, fits)

    def is_small(self, sampled: int) -> bool:
        """Return whether there is so little work that one local process is faster than starting Ray.

        Args:
            sampled: number of sentences to measure geometry on.
        """
        if not is_local(self.job.cluster) or not self.job.cluster.small_rows:
            return False
        training_sentences = sum(
            self.sizes[scoring.task.name]
            for scoring in self._items().values()
            if scoring.task.trains and scoring.load_result(self.store) is None
        )
        return training_sentences + sampled + sum(map(len, self.new.values())) <= self.job.cluster.small_rows

    def encode(self, run: Run) -> None:
        """Encode the new sentences, once for all candidates of a space."""
        first = {each.space_id: each for each in reversed(self.candidates)}
        for space_id, new in self.new.items():
            earlier = self.vectors[space_id]
            if len(new) and isinstance(earlier, SpaceVectors):
                self.vectors[space_id] = encode_sentences(run, new, earlier, first[space_id])

    def score(self, run: Run) -> tuple[MeasuredTask, ...]:
        """Score every candidate on every task, unless an earlier run did.

        Tasks that train classifiers come first, and large tasks before small ones, to balance the workers.
        """
        items = self._items()
        with run.stages("score", len(items), "scores") as bar:
            stored = {key: item.load_result(self.store) for key, item in items.items()}
            results = {key: result for key, result in stored.items() if result is not None}
            todo = sorted(
                (key for key in items if key not in results),
                key=lambda key: (items[key].task.trains, self.sizes[key[1]]),
                reverse=True,
            )
            bar.skip(len(results))
            for number, result in self._run_items([items[key] for key in todo], run.workers):
                results[todo[number]] = result
                bar.add(1)
        return tuple(
            MeasuredTask(task, tuple(results[each.id, task.name] for each in self.candidates))
            for task in self.tasks
        )

    def _run_items(self, items: Sequence[Scoring], workers: Workers) -> Iterator[tuple[int, ResampledResult]]:
        """Score on the workers, or in this process if that takes less time than to start a worker."""
        task = ScoreTask(self.store)
        rows = sum(self.sizes[item.task.name] * (1 + item.resamples) for item in items)
        if all(item.task.quick and item.fit is None for item in items) and rows <= _QUICK_ROWS:
            return enumerate(map(task.start(), items))
        return workers.map_units(task, items, Pool(max(1, min(workers.cpus, len(items)))))

    def _items(self) -> dict[Key, Scoring]:
        """Return each candidate and task to score, once for candidates with the same space and transform."""
        settings = self.job.evaluate
        return {
            (each.id, task.name): Scoring(
                each,
                task,
                self.vectors[each.space_id],
                settings.bootstrap,
                settings.seed,
                self.fits.by_task.get((each.id, task.name)),
            )
            for each, task in product(self.candidates, self.tasks)
        }


def _joined(sentences: Sentences, texts: Sequence[str] | None) -> Sentences:
    """Add texts to distinct sentences."""
    return Sentences.of([*sentences.texts.to_pylist(), *texts]) if texts else sentences
