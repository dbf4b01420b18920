"""Measure the geometry of candidates on sentences of the corpus and on pairs with human scores."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipeline.errors import DataError, ModelError
from pipeline.evaluate.sts import StsOptions, StsTask
from pipeline.evaluate.tasks import task_of_file
from pipeline.flows.context import FlowContext
from pipeline.flows.corpus import corpus_of, open_releases
from pipeline.flows.encode.encoder_copy import encoder_for_workers
from pipeline.flows.encode.trial_encode import SampleTexts, sample_texts
from pipeline.flows.evaluate.candidates import ResolvedCandidate
from pipeline.flows.evaluate.geometry_tasks import EncoderToMeasure, MeasureEncoder
from pipeline.flows.evaluate.sentences import clean_sentences
from pipeline.flows.night.previous_release import load_previous
from pipeline.flows.workers.interface import Workers
from pipeline.models.folder.folder import open_folder
from pipeline.settings import GeometrySettings, Job, TaskSettings
from pipeline.stats.encoder_geometry import (
    RAW,
    EncoderGeometry,
    GeometryReport,
    NamedLayers,
    NamedSpace,
    StaticWords,
)
from pipeline.stats.lexical import rank_correlation
from pipeline.stats.space import ScoredPairs
from pipeline.store.files.base import Store
from pipeline.store.files.open_store import open_store
from pipeline.text.ingest.ingest import ingest
from pipeline.text.ingest.tonights_files import ParentCorpus

_PAIR_FILES = ("sts/STSB-dev.parquet", "sts/STSB-test.parquet")
_MAXIMUM = 5.0  # highest human score of STS-B
_MIN_TEXTS = 10  # with fewer texts no metric is meaningful
_WITHOUT_STATES = {"dan": "a deep averaging network", "paragraph": "paragraph vectors"}  # by family


@dataclass(frozen=True)
class Sample:
    """Texts or pairs on which geometry is measured."""

    texts: tuple[str, ...] = ()
    pairs: ScoredPairs | None = None
    source: str = ""
    """name of the corpus or task that the sample is from"""
    reason: str | None = None
    """why there are no texts or pairs, or too few texts"""


def check_hidden_states(candidates: Sequence[ResolvedCandidate]) -> None:
    """Raise ModelError, before anything is encoded, for a candidate whose tokens have no states to read."""
    for candidate in candidates:
        folder = open_folder(candidate.encoder)
        found = f"{len(folder.parts)} encoders side by side" if folder.parts else None
        if found := found or _WITHOUT_STATES.get(folder.family):
            raise ModelError(
                f"evaluate --geometry: {candidate.name}",
                "an encoder whose tokens have hidden states",
                found,
                "leave this candidate out, or evaluate without --geometry",
            )


def measure_geometry(context: FlowContext, candidates: Sequence[ResolvedCandidate]) -> GeometryReport:
    """Measure the geometry of every candidate, with and without its transform.

    Texts come from the corpus, or from the pairs if there is none. Results of an earlier run are reused.

    Raises:
        DataError: there is neither a corpus nor a task with pairs.
    """
    job, store, workers = context.job, context.store, context.workers
    settings, pairs = job.evaluate.geometry, human_scored_pairs(job)
    with context.stages("geometry", unit="encoders") as bar:
        texts = _sample_corpus(job, workers)
        if len(texts.texts) < _MIN_TEXTS:
            texts = _texts_of_pairs(texts, pairs, settings)
        encoders = list(_encoders(candidates, store, workers))
        task = MeasureEncoder(store, workers.encode_settings(job.encode), settings, texts.texts, pairs.pairs)
        results = dict(workers.map_units(task, encoders, workers.pool(job.cluster, len(encoders))))
        bar.add(len(encoders))
    by_space = {encoder.space_id: results[number] for number, encoder in enumerate(encoders)}
    scored = pairs.pairs
    return GeometryReport(
        sentences=len(texts.texts),
        source=texts.source,
        pairs=len(scored.gold) if scored else 0,
        pairs_source=pairs.source or None,
        seed=settings.seed,
        neighbours=settings.neighbours,
        edit_unit=settings.edit_distance,
        mev=settings.mev,
        missing={name: each.reason for name, each in (("corpus", texts), ("pairs", pairs)) if each.reason},
        gold_edits=rank_correlation(scored.gold, scored.edits, "pairs") if scored else None,
        series=tuple(_named_spaces(candidates, by_space)),
        depths=tuple(_named_layers(candidates, by_space, store)),
    )


def human_scored_pairs(job: Job) -> Sample:
    """Load pairs with human scores: STS-B of evaluate.tasks, or the first STS task of evaluate.own.

    Scores are from 0 to 5, whatever the scale of the task.
    """
    options = job.evaluate
    source = next((each for each in options.own if each.kind == "sts"), None)
    reason = "evaluate.tasks is not set: it names a folder with STS-B"
    if options.tasks is not None:
        folder, reason = open_store(options.tasks), f"evaluate.tasks has neither {' nor '.join(_PAIR_FILES)}"
        if path := next(filter(folder.exists, _PAIR_FILES), None):
            source = TaskSettings(kind="sts", uri=folder.uri_of(path))
    if source is None:
        return Sample(reason=reason)
    task = task_of_file(source, options)
    assert isinstance(task, StsTask)
    pairs = task.pairs()
    left, right = (clean_sentences(side).to_pylist() for side in (pairs.left, pairs.right))
    gold = _from_0_to_5(pairs.gold, task.options)
    return Sample(pairs=ScoredPairs.of(left, right, gold, options.geometry.edit_distance), source=task.name)


def _from_0_to_5(gold: np.ndarray, options: StsOptions) -> np.ndarray:
    """Map scores to the scale of STS-B; other scales by the lowest and the highest score that occur."""
    if options.low >= 0 and options.high == _MAXIMUM:  # the scale of STS-B, and of SICK, which begins at 1
        return gold
    lowest = gold.min()
    return np.asarray(_MAXIMUM * (gold - lowest) / (gold.max() - lowest))


def _sample_corpus(job: Job, workers: Workers) -> Sample:
    """Sample texts by content key from the corpus of the current release, else from corpus.uri."""
    releases = open_releases(job)
    try:
        live = load_previous(releases)
        if live.release is not None and live.corpus is not None:
            corpus, source = live.corpus, f"the corpus of release {live.release.release}"
        else:
            parent, source = ParentCorpus(next_ordinal=releases.next_ordinal()), job.corpus.uri
            corpus = ingest(corpus_of(job), job.encode.unit_rows, releases.store, parent)
    except DataError as error:
        return Sample(reason=str(error))
    sample = SampleTexts(releases.store, job.evaluate.geometry.sentences, 1, corpus.dead)
    texts = sample_texts(workers, job.cluster, sample, corpus.units)
    return Sample(
        texts,
        source=source,
        reason=f"the corpus has {len(texts)} different texts" if len(texts) < _MIN_TEXTS else None,
    )


def _texts_of_pairs(texts: Sample, pairs: Sample, settings: GeometrySettings) -> Sample:
    """Sample texts from the pairs when there is no corpus."""
    if pairs.pairs is None:
        raise DataError(
            "evaluate --geometry",
            "texts of a corpus, or pairs of known similarity",
            f"neither: {texts.reason}; {pairs.reason}",
            "set corpus.uri or evaluate.tasks",
        )
    sentences = pairs.pairs.sentences
    chosen = np.sort(np.random.default_rng(settings.seed).permutation(len(sentences))[: settings.sentences])
    return replace(texts, texts=tuple(sentences[index] for index in chosen), source=pairs.source)


def _encoders(
    candidates: Sequence[ResolvedCandidate], store: Store, workers: Workers
) -> Iterator[EncoderToMeasure]:
    """Yield each encoder once, with the transforms of all candidates that use it."""
    for space_id in dict.fromkeys(each.space_id for each in candidates):
        same_space = [each for each in candidates if each.space_id == space_id]
        transforms = {
            each.transform_id: each.transform for each in same_space if each.transform_id and each.transform
        }
        yield EncoderToMeasure(
            encoder_for_workers(same_space[0].encoder, store, workers), space_id, transforms
        )


def _named_layers(
    candidates: Sequence[ResolvedCandidate], by_space: dict[str, EncoderGeometry], store: Store
) -> Iterator[NamedLayers]:
    """Yield the layers of every encoder; encoders that differ only after their layers share one entry."""
    equal: dict[str, list[str]] = {}  # layers as JSON -> space_ids
    for space_id, each in by_space.items():
        equal.setdefault(each.model_dump_json(include={"levels", "words", "bands", "missing"}), []).append(
            space_id
        )
    for space_ids in equal.values():
        first = by_space[space_ids[0]]
        names = ", ".join(_raw_name(space_id, candidates) for space_id in space_ids)
        yield NamedLayers(
            name=names,
            levels=first.levels,
            words=first.words,
            bands=first.bands,
            static_words=tuple(
                StaticWords(layer=level.number, words=file.rows, uri=store.uri_of(file.path))
                for level, file in zip(first.levels, first.static_words, strict=False)
            ),
            missing=first.missing,
        )


def _named_spaces(
    candidates: Sequence[ResolvedCandidate], by_space: dict[str, EncoderGeometry]
) -> Iterator[NamedSpace]:
    """Yield every space once: an encoder's raw vectors, then its transformed vectors."""
    names: dict[tuple[str, str], str] = {}
    for each in candidates:
        names.setdefault((each.space_id, RAW), _raw_name(each.space_id, candidates))
        if each.transform_id:
            names.setdefault((each.space_id, each.transform_id), each.name)
    for (space_id, key), name in names.items():
        yield NamedSpace(name=name, space=by_space[space_id].spaces[key])


def _raw_name(space_id: str, candidates: Sequence[ResolvedCandidate]) -> str:
    """Return the name of an encoder's raw vectors, if possible that of a candidate without a transform."""
    same_space = [each for each in candidates if each.space_id == space_id]
    return next(
        (each.name for each in same_space if each.transform_id is None),
        f"{same_space[0].name} without its transform",
    )
