"""The work of an evaluation that no earlier run has done: sentences to encode, and candidates to score."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from pipeline.evaluate import EvaluationTask
from pipeline.flows.context import FlowContext
from pipeline.flows.evaluate.candidates import ResolvedCandidate
from pipeline.flows.evaluate.fits import PlannedFits, plan_fits
from pipeline.flows.evaluate.scoring import MeasuredTask, ResampledResult, ScoreTask, Scoring
from pipeline.flows.evaluate.sentences import (
    Sentences,
    SpaceVectors,
    SparseVectors,
    encode_sentences,
    load_vectors,
)
from pipeline.flows.workers.cluster import is_local
from pipeline.flows.workers.interface import Workers
from pipeline.flows.workers.tasks import Pool
from pipeline.log import Stages, counted
from pipeline.settings import Job
from pipeline.store.files.base import Store

Key = tuple[str, str]
"""(path of the result, name of the task): candidates with equal vectors share their scores"""

_QUICK_ROWS = 2_000_000  # sentences times resamples that one process scores in about two seconds


@dataclass(frozen=True)
class EvaluationWork:
    """The work of one evaluation: sentences to encode, and candidates to score on tasks."""

    job: Job
    """settings of the job"""
    store: Store
    """store of the evaluations"""
    tasks: Sequence[EvaluationTask]
    """the tasks"""
    candidates: Sequence[ResolvedCandidate]
    """the candidates"""
    sizes: dict[str, int]
    """number of sentences of each task, by its name"""
    vectors: dict[str, SpaceVectors | SparseVectors]
    """sentence vectors of each space, by space_id; `encode` adds the new ones"""
    new: dict[str, Sentences]
    """by space_id, the sentences that no earlier evaluation has encoded"""
    fits: PlannedFits
    """transforms to fit for single tasks"""

    @classmethod
    def read(
        cls,
        job: Job,
        store: Store,
        stages: Stages,
        tasks: Sequence[EvaluationTask],
        candidates: Sequence[ResolvedCandidate],
    ) -> "EvaluationWork":
        """Read the tasks, and find the sentences that are not encoded yet."""
        sizes, all_texts, prompted = dict[str, int](), list[str](), dict[str, list[str]]()
        with stages("read tasks", unit="sentences") as bar:
            for task in tasks:
                texts = task.sentences()
                for each in candidates:
                    for other, own in _prompted(each, task, texts):
                        prompted.setdefault(other.space_id, []).extend(own)
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
        for other in _variants(candidates):
            if other.space_id not in vectors and other.space_id in prompted:
                earlier = load_vectors(store, other)
                vectors[other.space_id] = earlier
                new[other.space_id] = Sentences.of(prompted[other.space_id]).without(earlier.keys)
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

    def encode(self, context: FlowContext) -> None:
        """Encode the new sentences, once for all candidates of a space."""
        first = {each.space_id: each for each in reversed([*self.candidates, *_variants(self.candidates)])}
        for space_id, new in self.new.items():
            earlier = self.vectors[space_id]
            if len(new) and isinstance(earlier, SpaceVectors):
                self.vectors[space_id] = encode_sentences(context, new, earlier, first[space_id])

    def score(self, context: FlowContext) -> tuple[MeasuredTask, ...]:
        """Score every candidate on every task, unless an earlier run did.

        Tasks that train classifiers come first, and large tasks before small ones, to balance the workers.
        """
        items = self._items()
        with context.stages("score", len(items), "scores") as bar:
            stored = {key: item.load_result(self.store) for key, item in items.items()}
            results = {key: result for key, result in stored.items() if result is not None}
            todo = sorted(
                (key for key in items if key not in results),
                key=lambda key: (items[key].task.trains, self.sizes[key[1]]),
                reverse=True,
            )
            bar.skip(len(results))
            for number, result in self._run_items([items[key] for key in todo], context.workers):
                results[todo[number]] = result
                bar.add(1)
        return tuple(
            MeasuredTask(task, tuple(results[_key(self._item(each, task))] for each in self.candidates))
            for task in self.tasks
        )

    def _run_items(self, items: Sequence[Scoring], workers: Workers) -> Iterator[tuple[int, ResampledResult]]:
        """Score on the workers, or in this process if that is faster than starting a worker."""
        task = ScoreTask(self.store)
        rows = sum(self.sizes[item.task.name] * (1 + item.resamples) for item in items)
        if all(item.task.quick and item.fit is None for item in items) and rows <= _QUICK_ROWS:
            return enumerate(map(task.start(), items))
        return workers.map_units(task, items, Pool(max(1, min(workers.cpus, len(items)))))

    def _items(self) -> dict[Key, Scoring]:
        """Return the pairs of candidate and task to score; candidates with equal vectors share one."""
        items = (self._item(each, task) for each, task in product(self.candidates, self.tasks))
        return {_key(item): item for item in items}

    def _item(self, candidate: ResolvedCandidate, task: EvaluationTask) -> Scoring:
        """Return a candidate to score on a task, with the prompts for that task."""
        prompted, fit = candidate.for_task(task.kind), self.fits.by_task.get((candidate.id, task.name))
        queries = candidate.of_queries if task.queries() else None
        return Scoring(
            prompted,
            task,
            self.vectors[prompted.space_id],
            self.job.evaluate.bootstrap,
            self.job.evaluate.seed,
            fit,
            None if queries is None else self.vectors[queries.space_id],
        )


def _key(item: Scoring) -> Key:
    return item.path, item.task.name


def _variants(candidates: Sequence[ResolvedCandidate]) -> Iterator[ResolvedCandidate]:
    """Yield the candidates' encoders with their prompts for queries and for kinds of tasks."""
    for each in candidates:
        yield from each.prompted.values()


def _prompted(
    candidate: ResolvedCandidate, task: EvaluationTask, texts: Sequence[str]
) -> Iterator[tuple[ResolvedCandidate, Sequence[str]]]:
    """Yield the candidate with each special prompt that a task needs, and the texts that get this prompt."""
    if (other := candidate.for_task(task.kind)) is not candidate:
        yield other, texts
    if candidate.of_queries is not None and (queries := task.queries()):
        yield candidate.of_queries, queries


def _joined(sentences: Sentences, texts: Sequence[str] | None) -> Sentences:
    """Add texts to distinct sentences."""
    return Sentences.of([*sentences.texts.to_pylist(), *texts]) if texts else sentences
