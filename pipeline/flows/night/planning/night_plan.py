"""Estimate a night from file footers, sampled texts, and a few seconds of encoding, for `manta plan`."""

import os
import time
from collections import Counter
from dataclasses import dataclass, replace
from itertools import cycle
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.device import Device, resolve
from pipeline.errors import ConfigError, DataError
from pipeline.flows.corpus import corpus_of, open_releases, sample_files
from pipeline.flows.night.gates.judged_ids import check_judged_ids_in_files
from pipeline.flows.night.planning.cost import NightCost, NightSize, predict_cost
from pipeline.flows.night.previous_release import changed_files, load_previous
from pipeline.flows.workers.address import ClusterAddress
from pipeline.flows.workers.cluster import connect
from pipeline.flows.workers.nodes import Node
from pipeline.index.build.index_shape import IndexPlan, plan_extension, plan_index
from pipeline.log import RunningStage, Stages
from pipeline.settings import ClusterSettings, CorpusSettings, Job
from pipeline.store.files.disk import temporary_folder
from pipeline.text.formats.docstrings import harvest_docstrings
from pipeline.text.formats.reader import survey_files
from pipeline.text.ingest.chunking import row_cutter
from pipeline.text.ingest.corpus_record import reading_digest
from pipeline.text.sources.listing import local_path
from pipeline.text.sources.sources import SourceFile, list_files

if TYPE_CHECKING:
    from pipeline.models.inference.encoder import Encoder


def planned_nodes(cluster: ClusterSettings, stages: Stages, *, verbose: bool = False) -> tuple[Node, ...]:
    """Return the nodes that cluster.nodes names, else those of a running cluster, else this machine."""
    import torch

    settings, here = cluster.nodes, os.cpu_count() or 1
    if settings.count is not None:
        return settings.count * (Node(settings.cpus or here, settings.gpus),)
    if not ClusterAddress.of(cluster).is_local:
        with connect(cluster, stages, verbose=verbose) as workers:
            return workers.nodes
    return (Node(here, torch.cuda.device_count()),)


SECONDS = 5.0  # duration of the measurement
_SAMPLED_FILES, _SAMPLED_ROWS = 8, 4_096
_MEASURED_TEXTS = 256  # encoded at once while measuring: enough for full buffers
_PROCESS_BYTES = 700 << 20  # a worker with torch and Ray loaded


@dataclass(frozen=True)
class NightPlan:
    """An estimate of a night."""

    files: int
    rows: int
    """number of rows, as given, else of the corpus"""
    exact: bool
    """True if the rows were given, or each file records its number of rows; else they are estimated"""
    sampled: int
    """number of sampled texts"""
    tokens_per_row: float
    truncated_share: float
    unusable_share: float
    """proportion of texts without a vector, such as those without a known word"""
    units: int
    workers: int
    rows_per_s: float
    """speed of one worker, as given, else measured here"""
    encode_s: float
    vector_bytes: int
    """size of the vectors of all rows"""
    worker_bytes: int
    """memory of one worker"""
    index: IndexPlan
    cost: NightCost
    """prediction for the nodes of the cluster"""
    nodes: tuple[Node, ...]
    """resources of these nodes"""
    release: int | None = None
    """number of the current release; None before the first night"""
    recall_at_10: float | None = None
    """recall of its index, if it was measured"""
    changed_files: int | None = None
    """number of files that changed since that release"""
    tonight_rows: int | None = None
    """number of rows in these files, an upper bound of the rows to encode"""

    @property
    def task_bytes(self) -> int:
        """Memory of the largest task of the index: the training sample, or a part that is written."""
        plan, parts = self.index, self.index.parts(self.rows)
        return max(4 * plan.train_rows * plan.dim, 0 if plan.on_disk else plan.file_bytes // parts)

    def facts(self) -> dict[str, Any]:
        """Return the plan as a JSON object."""
        index = self.index.model_dump(mode="json")
        nodes = [{"cpus": node.cpus, "gpus": node.gpus} for node in self.nodes]
        return vars(self) | {"index": index, "cost": self.cost.facts(), "nodes": nodes}


class Assumptions(NamedTuple):
    """Values to plan with, instead of values that are measured on this corpus and this machine."""

    rows: int | None = None
    """number of rows; None: the corpus's"""
    rows_per_s: float | None = None
    """rows that one worker encodes in a second; None: as measured here"""


class _Sample(NamedTuple):
    """Sampled texts of a corpus, and the number of all rows, which is `exact` or estimated."""

    texts: list[str]
    rows: int
    exact: bool

    @property
    def text_bytes(self) -> float:
        """Mean number of bytes of a text."""
        return sum(len(text.encode()) for text in self.texts) / len(self.texts)


class _Inputs(NamedTuple):
    """The number of files, the sample of their texts, and counts and seconds of the sample's encoding."""

    files: int
    sample: _Sample
    sums: Counter[str]
    seconds: float


def plan(
    job: Job,
    stages: Stages,
    *,
    seconds: float = SECONDS,
    assumed: Assumptions = Assumptions(),
    verbose: bool = False,
) -> NightPlan:
    """Estimate a night.

    Nothing is written below release.root or corpus.uri; a harvested corpus is harvested into a temporary
    directory.

    Args:
        seconds: duration of encoding sampled texts.
        verbose: show the log of Ray, if a cluster is asked for its nodes.

    Raises:
        ConfigError: no encode worker fits the nodes, or the encoder cannot be measured here.
        DataError: no row can be sampled, or no id of gates.relevance.queries is in a small corpus.
    """
    from pipeline.models.inference.encoder import load_encoder

    nodes = planned_nodes(job.cluster, stages, verbose=verbose)
    with temporary_folder("manta-plan-") as directory:
        corpus = corpus_of(job)
        if corpus.harvest is not None:
            harvest_docstrings(str(directory), corpus.max_rows)
            corpus = corpus.model_copy(update={"uri": str(directory), "harvest": None})
        with stages("sample"):
            files = list_files(corpus)
            check_judged_ids_in_files(job.gates, corpus, files)
            sample = _sample(files, corpus)
        with stages("measure", unit="texts") as bar:
            encoder = load_encoder(job.encoder, job.encode, _measuring_device(job, assumed))
            sums, spent_s = _measure(encoder, sample.texts, seconds, bar)
    night = _estimate_first_night(job, _Inputs(len(files), sample, sums, spent_s), encoder, nodes, assumed)
    return _estimate_tonight(night, job, corpus, files)


def _estimate_first_night(
    job: Job, inputs: _Inputs, encoder: "Encoder", nodes: tuple[Node, ...], assumed: Assumptions
) -> NightPlan:
    """Estimate a night in which all rows are new."""
    files, sample, sums, spent_s = inputs
    texts_encoded, dim = sums["texts"], encoder.dim
    weights = sum(encoder.folder.file(name).stat().st_size for name in encoder.folder.weights)
    rows = assumed.rows or sample.rows
    size = NightSize(
        rows=rows,
        text_bytes=sample.text_bytes,
        dim=dim,
        rows_per_s=assumed.rows_per_s or texts_encoded / spent_s,
        index=plan_index(rows, dim, job.index, target=job.gates.wanted_recall),
        reads_on_workers=len(nodes) == 1 or local_path(job.corpus.uri) is None,
    )
    cost, units = predict_cost(job, size, nodes), -(-rows // job.encode.unit_rows)
    return NightPlan(
        files=files,
        rows=rows,
        exact=sample.exact or assumed.rows is not None,
        sampled=len(sample.texts),
        tokens_per_row=sums["tokens"] / texts_encoded,
        truncated_share=sums["truncated"] / texts_encoded,
        unusable_share=sums["unusable"] / texts_encoded,
        units=units,
        workers=min(cost.of("encode").workers, units),
        rows_per_s=size.rows_per_s,
        encode_s=cost.of("encode").wall_s,
        vector_bytes=rows * dim * (2 if job.encode.vectors == "float16" else 4),
        worker_bytes=_PROCESS_BYTES + 2 * weights + 3 * min(rows, job.encode.unit_rows) * dim * 4,
        index=size.index,
        cost=cost,
        nodes=nodes,
    )


def _measuring_device(job: Job, assumed: Assumptions) -> Device:
    """Return the device of the workers; the CPU if this machine lacks it and the workers' speed is given.

    Raises:
        ConfigError: the workers use GPUs, their speed is not given, and this machine has no GPU.
    """
    import torch

    device = resolve(job.encode.device, job.cluster.gpus_per_worker)
    if device.kind == "cpu" or torch.cuda.is_available():
        return device
    if assumed.rows_per_s is None:
        raise ConfigError(
            "plan",
            "a GPU on this machine, to measure how fast a worker encodes",
            "none",
            "run it on a node with a GPU, or give the rows that a worker encodes in a second: --rows-per-s",
        )
    return Device("cpu")


def _sample(files: list[SourceFile], corpus: CorpusSettings) -> _Sample:
    """Read texts from the beginnings of a few files, and estimate the rows of the others by their size."""
    survey, cut_rows = survey_files(files, corpus), row_cutter(corpus)
    texts, read_bytes, read_rows, passed, filtered = list[str](), 0, 0, 0, 0
    sampled = sample_files(files, survey, corpus, _SAMPLED_FILES, batches=1)
    for batches in sampled:
        for batch in batches:
            taken = batch.good.slice(0, _SAMPLED_ROWS // len(sampled))
            texts += cut_rows(taken)["text"].to_pylist()
            read_rows += taken.num_rows
            read_bytes += int(batch.position * taken.num_rows / max(1, batch.good.num_rows))
            passed, filtered = passed + batch.good.num_rows, filtered + batch.filtered.num_rows
    if not texts:
        raise DataError(
            corpus.uri,
            "a row with an id and a text in the first batches",
            "none",
            "check corpus.id, corpus.text, corpus.where and corpus.exclude",
        )
    exact = None not in survey.rows.values() and corpus.where is None and corpus.exclude is None
    rows = round(sum(count or 0 for count in survey.rows.values()) * passed / (passed + filtered))
    if not exact:
        unknown = sum(file.size for file in files if survey.rows.get(file.name) is None)
        rows += int(unknown * read_rows / max(1, read_bytes))
    rows = max(1, min(rows, corpus.max_rows or rows))
    return _Sample(texts, round(rows * len(texts) / read_rows), exact and corpus.chunk.by is None)


def _measure(
    encoder: "Encoder", texts: list[str], seconds: float, bar: RunningStage
) -> tuple[Counter[str], float]:
    """Encode the texts repeatedly for at least `seconds`.

    Returns:
        Sums of texts, tokens, truncated and unusable texts, and the seconds that they took.
    """
    encoder.encode(texts[:_MEASURED_TEXTS])  # not measured: the first call is slower
    sums, spent_s = Counter[str](), 0.0
    for start in cycle(range(0, len(texts), _MEASURED_TEXTS)):
        begin = time.perf_counter()
        for encoded in encoder.encode_stream([texts[start : start + _MEASURED_TEXTS]]):
            sums["texts"] += len(encoded.counts.lengths)
            sums["tokens"] += int(encoded.counts.lengths.sum())
            sums["truncated"] += int(encoded.counts.truncated.sum())
            sums["unusable"] += int(encoded.bad.sum())
        spent_s += time.perf_counter() - begin
        bar.reach(sums["texts"])
        if spent_s >= seconds:
            break
    return sums, spent_s


def _estimate_tonight(
    night: NightPlan, job: Job, corpus: CorpusSettings, files: list[SourceFile]
) -> NightPlan:
    """Add the files that changed since the current release, and the kind and recall of its index.

    The rows of these files are estimated by the files' proportion of all bytes.
    """
    previous = load_previous(open_releases(job))
    if previous.release is None:
        return night
    parent, index = previous.parent_corpus(job), night.index
    if not parent.rebuild_reason:
        last = previous.release.index
        index = plan_extension(night.rows, last.dim, job.index, last.kind, last.factory)
    is_read_alike = parent.corpus is not None and parent.corpus.reading == reading_digest(corpus)
    changed = changed_files(files, parent.corpus if is_read_alike and not parent.rebuild_reason else None)
    proportion = sum(file.size for file in changed) / max(1, sum(file.size for file in files))
    recall_gate = previous.release.gates.get("recall_at_10")
    return replace(
        night,
        index=index,
        recall_at_10=recall_gate.value if recall_gate else None,
        release=previous.release.release,
        changed_files=len(changed),
        tonight_rows=round(night.rows * proportion),
    )
