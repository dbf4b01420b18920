"""Evaluate candidates on tasks.

Sentences are encoded once for each vector space. Vectors and scores of earlier runs are reused.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from pipeline.config import Settings, digest_of, to_yaml
from pipeline.errors import ConfigError
from pipeline.evaluate.mask_words import MaskWordsReport
from pipeline.evaluate.tasks import MissingTask, Selection, select_tasks
from pipeline.flows.context import FlowContext
from pipeline.flows.evaluate.candidates import (
    ResolvedCandidate,
    check_sparse,
    evaluations_store,
    resolve_candidates,
    with_similarity,
)
from pipeline.flows.evaluate.geometry import check_hidden_states, measure_geometry
from pipeline.flows.evaluate.mask_words import read_mask_words
from pipeline.flows.evaluate.retrieval_examples import retrieval_examples
from pipeline.flows.evaluate.scoring import MeasuredTask
from pipeline.flows.evaluate.sentences import sentences_per_s
from pipeline.flows.evaluate.token_bias import measure_token_bias
from pipeline.flows.evaluate.work import EvaluationWork
from pipeline.flows.night.candidate import PACKAGES
from pipeline.flows.workers.cluster import connect, local_workers
from pipeline.log import Stages, announce, packages
from pipeline.report.evaluation_report import DifferingPair, Disagreement, RetrievalExample
from pipeline.settings import Job
from pipeline.stats.encoder_geometry import GeometryReport
from pipeline.stats.tensors import unpack
from pipeline.stats.token_bias import NamedTokenBias
from pipeline.store.files.base import Store

_MAX_PAIRS = 4  # shown for each task and candidate
_MAX_COMPARISONS = 8  # shown for all tasks and candidates together
# Kinds of tasks whose rows are pairs -> name of the human judgements in their evidence.
_GOLD = {"sts": "gold", "pairs": "positive"}
_LABELS = {0: "not the same", 1: "the same"}
_MAX_CHARACTERS = 300  # characters of a sentence that are shown


def disagreements(
    measured: Sequence[MeasuredTask], names: Sequence[str], store: Store
) -> tuple[Disagreement, ...]:
    """Compare each candidate with the first one on tasks over pairs. Returns the first few comparisons.

    Args:
        measured: tasks with each candidate's result, in the order of `names`.
        names: names of the candidates.
        store: store of the tasks' evidence.
    """
    return tuple(islice(_comparisons(measured, names, store), _MAX_COMPARISONS))


def _comparisons(
    measured: Sequence[MeasuredTask], names: Sequence[str], store: Store
) -> Iterator[Disagreement]:
    for task, results in ((each.task, each.results) for each in measured if each.task.kind in _GOLD):
        references = [each.result.evidence for each in results]
        evidence = [unpack(file.read(store), kind="evidence")[0] for file in references if file is not None]
        if len(evidence) < len(names):
            continue
        sentences = task.sentences()
        for name, other in zip(names[1:], evidence[1:], strict=True):
            if pairs := tuple(_most_different(task.kind, sentences, evidence[0], other)):
                yield Disagreement(task.name, names[0], name, pairs)


def _most_different(
    kind: str, sentences: Sequence[str], first: dict[str, np.ndarray], other: dict[str, np.ndarray]
) -> Iterator[DifferingPair]:
    """Yield the pairs whose ranks by similarity differ most, largest difference first.

    A rank is the proportion of the other pairs that are less similar, with ties counted half.

    Args:
        kind: kind of the task.
        sentences: the first sentences of all pairs, then the second ones.
        first: evidence of the first candidate.
        other: evidence of the other candidate.
    """
    from scipy.stats import rankdata  # takes a second to import

    values, gold = [each["prediction"] for each in (first, other)], first[_GOLD[kind]]
    ranks = [(rankdata(each) - 1) / max(len(each) - 1, 1) for each in values]
    gaps = np.abs(ranks[1] - ranks[0])
    pair_count = len(sentences) // 2
    for row in np.argsort(-gaps, kind="stable")[:_MAX_PAIRS].tolist():
        if gaps[row] > 0:
            yield DifferingPair(
                sentences[row][:_MAX_CHARACTERS],
                sentences[pair_count + row][:_MAX_CHARACTERS],
                f"{gold[row]:g}" if kind == "sts" else _LABELS[int(gold[row])],
                (float(values[0][row]), float(values[1][row])),
                (float(ranks[0][row]), float(ranks[1][row])),
            )


_PACKAGES = (*PACKAGES, "scikit-learn", "scipy")


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation."""

    id: str
    """digest of candidates, tasks and their settings, equal for equal evaluations"""
    root: str
    """URI of the folder that holds all evaluations"""
    candidates: tuple[ResolvedCandidate, ...]
    """the candidates"""
    measured: tuple[MeasuredTask, ...]
    """the tasks, with the results of all candidates"""
    missing: tuple[MissingTask, ...]
    """requested tasks whose files are missing"""
    numerics: tuple[dict[str, int], ...]
    """for each candidate, the number of its sentence vectors by numerics_id"""
    encoded: int
    """number of sentences encoded in this run"""
    resamples: int
    """number of bootstrap resamples"""
    settings: str
    """settings of the job, as YAML"""
    packages: dict[str, str]
    """versions of packages"""
    speeds: tuple[float | None, ...]
    """for each candidate, sentences per second of one worker; None if it was never measured"""
    disagreements: tuple[Disagreement, ...]
    """pairs on which candidates differ most"""
    retrieved: tuple[RetrievalExample, ...]
    """examples of what candidates retrieve"""
    geometry: GeometryReport | None
    """metrics of the vector spaces; None if not requested"""
    mask_words: MaskWordsReport | None
    """words at the masks of templates; None if not requested"""
    token_bias: tuple[NamedTokenBias, ...]
    """bias of the tables of token embeddings; empty if not requested"""


def compares_candidates(job: Job, *, analyses: bool = False) -> bool:
    """Return whether there are tasks, or analyses requested on the command line, to compare candidates by.

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
        mask_words: also report the words that candidates predict at the mask token that they pool.

    Raises:
        ConfigError, DataError, ModelError, SpaceMismatch: as in `resolve_candidates` and `select_tasks`.
    """
    store, root = evaluations_store(job)
    candidates = resolve_candidates(job, store)
    selected = select_tasks(with_similarity(job.evaluate, candidates))
    if selected.missing:
        announce(f"missing tasks, listed at the end: {len(selected.missing)}")
    _check_candidates(job, candidates, selected, geometry=geometry, mask_words=mask_words)
    work = EvaluationWork.read(job, store, stages, selected.tasks, candidates)
    sampled = (geometry + mask_words) * job.evaluate.geometry.sentences * len(work.vectors)
    with (
        local_workers(work.is_small(sampled), job.cluster.patience_s) as local,
        connect(job.cluster, stages, verbose=verbose, local=local, stores={root: store}) as workers,
    ):
        context = FlowContext(job, store, workers, stages)
        mask_words_report = read_mask_words(context, candidates) if mask_words else None
        work.encode(context)
        measured = work.score(context)
        geometry_report = measure_geometry(context, candidates) if geometry else None
        wants_bias = geometry and job.evaluate.geometry.token_bias
        token_bias = measure_token_bias(context, candidates) if wants_bias else ()
    names = [each.name for each in candidates]
    reports = [geometry_report, *([mask_words_report] if mask_words_report else []), *token_bias]
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


def _check_candidates(
    job: Job,
    candidates: Sequence[ResolvedCandidate],
    selected: Selection,
    *,
    geometry: bool,
    mask_words: bool,
) -> None:
    """Raise ConfigError for a candidate that the tasks or the analyses cannot measure."""
    check_sparse(candidates, selected.tasks, job.evaluate.similarity, analyses=geometry or mask_words)
    if geometry:
        check_hidden_states(candidates)


def _evaluation_id(
    job: Job,
    candidates: Sequence[ResolvedCandidate],
    selected: Selection,
    reports: Sequence[Settings | None],
) -> str:
    """Return a digest of everything that the results depend on.

    Args:
        reports: the report on geometry, or None without --geometry; then the other requested reports.
    """
    identity = [
        [[*each.id, each.name, *each.prompted_spaces] for each in candidates],
        [[task.name, task.digest] for task in selected.tasks],
        [each.name for each in selected.missing],
        job.evaluate.bootstrap,
        job.evaluate.seed,
        *(report and report.content_id() for report in reports),
    ]
    return digest_of(identity)[:24]
