"""The geometry of several candidates, measured on sentences of the corpus and on pairs judged by people."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipeline.errors import DataError
from pipeline.evaluate.sts import StsTask
from pipeline.evaluate.tasks import own_task
from pipeline.flows.corpus import open_releases
from pipeline.flows.encode.encoder_copy import encoder_for_workers
from pipeline.flows.encode.probe import SampleTexts
from pipeline.flows.evaluate.candidates import Contender
from pipeline.flows.evaluate.geometry_tasks import MeasureEncoder, Subject
from pipeline.flows.evaluate.sentences import cleaned
from pipeline.flows.night.previous import load_previous
from pipeline.flows.run import Run
from pipeline.flows.workers.tasks import Pool
from pipeline.flows.workers.workers import Workers
from pipeline.settings import GeometrySettings, Job, TaskSettings
from pipeline.stats.lexical import rank_correlation
from pipeline.stats.measured import RAW, EncoderGeometry, GeometryReport, NamedLayers, NamedSpace
from pipeline.stats.space import ScoredPairs
from pipeline.store.base import Store
from pipeline.store.store import open_store
from pipeline.text.corpus.ingest import ParentCorpus, ingest

_PAIR_FILES = ("sts/STSB-dev.parquet", "sts/STSB-test.parquet")
_FEWEST = 10  # texts; with fewer no metric is meaningful


@dataclass(frozen=True)
class Sample:
    """Texts or pairs to measure on, their source, and the reason if there are none."""

    texts: tuple[str, ...] = ()
    pairs: ScoredPairs | None = None
    source: str = ""
    why: str = ""


def measure_geometry(run: Run, candidates: Sequence[Contender]) -> GeometryReport:
    """Measure the geometry of every candidate, with and without its transform.

    Texts come from the corpus, or from the pairs if there is none. Results of an earlier run are reused.

    Raises:
        DataError: neither a corpus nor pairs.
    """
    job, store, workers = run.job, run.store, run.workers
    settings, pairs = job.evaluate.geometry, known_pairs(job)
    with run.stages("geometry", unit="encoders") as bar:
        texts = _sampled(job, workers)
        if len(texts.texts) < _FEWEST:
            texts = _texts_of_pairs(texts, pairs, settings)
        subjects = list(_subjects(candidates, store, workers))
        task = MeasureEncoder(store, workers.encode_settings(job.encode), settings, texts.texts, pairs.pairs)
        made = dict(workers.map_units(task, subjects, workers.pool(job.cluster, len(subjects))))
        bar.add(len(subjects))
    measured = {made[number].space_id: made[number] for number in range(len(subjects))}
    known = pairs.pairs
    return GeometryReport(
        sentences=len(texts.texts),
        source=texts.source,
        pairs=len(known.gold) if known else 0,
        pairs_source=pairs.source or None,
        seed=settings.seed,
        neighbours=settings.neighbours,
        edit_unit=settings.edit_distance,
        missing={name: each.why for name, each in (("corpus", texts), ("pairs", pairs)) if each.why},
        gold_edits=rank_correlation(known.gold, known.edits, "pairs") if known else None,
        series=tuple(_series(candidates, measured)),
        depths=tuple(_depths(candidates, measured)),
    )


def known_pairs(job: Job) -> Sample:
    """Load STS-B dev, else test, from the folder of tasks; else the first STS task of the user's own."""
    options = job.evaluate
    source = next((each for each in options.own if each.kind == "sts"), None)
    why = "evaluate.tasks is not set: it names a folder with STS-B"
    if options.tasks is not None:
        home, why = open_store(options.tasks), f"evaluate.tasks has neither {' nor '.join(_PAIR_FILES)}"
        if path := next(filter(home.exists, _PAIR_FILES), None):
            source = TaskSettings(kind="sts", uri=home.uri_of(path))
    if source is None:
        return Sample(why=why)
    task = own_task(source, options)
    assert isinstance(task, StsTask)
    read = task.pairs()
    left, right = (cleaned(side).to_pylist() for side in (read.left, read.right))
    return Sample(
        pairs=ScoredPairs.of(left, right, read.gold, options.geometry.edit_distance), source=task.name
    )


def _sampled(job: Job, workers: Workers) -> Sample:
    """Sample texts by content key from the corpus of the live release, else from corpus.uri."""
    releases = open_releases(job)
    try:
        live = load_previous(releases)
        if live.release is not None and live.corpus is not None:
            corpus, source = live.corpus, f"the corpus of release {live.release.release}"
        else:
            parent, source = ParentCorpus(next_ordinal=releases.next_ordinal()), job.corpus.uri
            corpus = ingest(job.corpus, job.encode.unit_rows, releases.store, parent)
    except DataError as error:
        return Sample(why=str(error))
    texts = workers.run(
        SampleTexts(releases.store, job.evaluate.geometry.sentences, 1, corpus.dead), corpus.units, Pool(1)
    )
    return Sample(
        texts,
        source=source,
        why=f"the corpus has {len(texts)} different texts" if len(texts) < _FEWEST else "",
    )


def _texts_of_pairs(texts: Sample, pairs: Sample, settings: GeometrySettings) -> Sample:
    """Return the sentences of the pairs as the texts to measure on."""
    if pairs.pairs is None:
        raise DataError(
            "evaluate --geometry",
            "texts of a corpus, or pairs of known similarity",
            f"neither: {texts.why}; {pairs.why}",
            "set corpus.uri or evaluate.tasks",
        )
    sentences = pairs.pairs.sentences
    chosen = np.sort(np.random.default_rng(settings.seed).permutation(len(sentences))[: settings.sentences])
    return replace(texts, texts=tuple(sentences[index] for index in chosen), source=pairs.source)


def _subjects(candidates: Sequence[Contender], store: Store, workers: Workers) -> Iterator[Subject]:
    """Yield each encoder once, with the transforms of all candidates that use it."""
    for space_id in dict.fromkeys(each.space_id for each in candidates):
        alike = [each for each in candidates if each.space_id == space_id]
        transforms = {
            each.transform_id: each.transform for each in alike if each.transform_id and each.transform
        }
        yield Subject(encoder_for_workers(alike[0].encoder, store, workers), space_id, transforms)


def _depths(candidates: Sequence[Contender], measured: dict[str, EncoderGeometry]) -> Iterator[NamedLayers]:
    """Yield the layers of every encoder, once for candidates that differ only after them, as in pooling."""
    alike: dict[str, list[str]] = {}
    for space_id, each in measured.items():
        alike.setdefault(each.model_dump_json(include={"levels", "words", "missing"}), []).append(space_id)
    for space_ids in alike.values():
        each, names = measured[space_ids[0]], [_plain_name(space_id, candidates) for space_id in space_ids]
        yield NamedLayers(name=", ".join(names), levels=each.levels, words=each.words, missing=each.missing)


def _series(candidates: Sequence[Contender], measured: dict[str, EncoderGeometry]) -> Iterator[NamedSpace]:
    """Yield every space once: a candidate's raw vectors before its transformed ones."""
    names: dict[tuple[str, str], str] = {}
    for each in candidates:
        names.setdefault((each.space_id, RAW), _plain_name(each.space_id, candidates))
        if each.transform_id:
            names.setdefault((each.space_id, each.transform_id), each.name)
    for (space_id, key), name in names.items():
        yield NamedSpace(name=name, space=measured[space_id].spaces[key])


def _plain_name(space_id: str, candidates: Sequence[Contender]) -> str:
    """Return the name of an encoder without any transform."""
    alike = [each for each in candidates if each.space_id == space_id]
    return next(
        (each.name for each in alike if each.transform_id is None), f"{alike[0].name} without its transform"
    )
