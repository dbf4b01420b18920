"""Can a night run? Every check says what it found and, where that will not do, the remedy."""

import importlib.metadata
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import pyarrow.compute as pc

from pipeline.device import resolve
from pipeline.errors import ConfigError, PipelineError
from pipeline.flows.night import check_kind
from pipeline.log import Stages, size
from pipeline.models.folder import open_folder
from pipeline.settings import Job
from pipeline.store.probe import check_store
from pipeline.store.store import Store, open_store
from pipeline.text.reader import read_batches, survey
from pipeline.text.sources import list_files

_SAMPLED_FILES, _SAMPLED_BATCHES = 4, 4
_ROOM = 2.5             # times the vectors' bytes: the vectors, an index as large, and texts, keys and parts beside them


@dataclass(frozen=True)
class Check:
    """One answer. problem: None when all is well."""

    name: str
    found: str
    problem: str | None = None


def preflight(job: Job, stages: Stages, *, verbose: bool = False) -> list[Check]:
    """All checks, in an order in which the first problem is likely the cause of later ones."""
    made: list[Check] = []
    for name, look in _checks(job, stages, verbose):
        try:
            made += [Check(name, found) for found in look()]
        except PipelineError as error:
            made.append(Check(name, "", str(error)))
    return made


def _checks(job: Job, stages: Stages, verbose: bool) -> Iterator[tuple[str, Callable[[], Iterator[str]]]]:
    yield "versions", _versions
    yield "store", lambda: _store(open_store(job.release.root), needs_create=job.release.commits_root is None)
    if job.release.commits_root is not None:
        yield "commits", lambda: _store(open_store(job.release.commits_root or ""), needs_create=True)
    yield "encoder", lambda: _encoder(job)
    yield "index", lambda: _index(job)
    if job.corpus.harvest is None:
        yield "corpus", lambda: _corpus(job)
        yield "space", lambda: _space(job)
    yield "cluster", lambda: _cluster(job, stages, verbose)


def _versions() -> Iterator[str]:
    both = [name for name in ("faiss-cpu", "faiss-gpu") if _version(name)]
    if len(both) != 1:
        remedy = "pip uninstall both, then install one of the extras cpu, gpu or local"
        raise ConfigError("packages", "faiss-cpu or faiss-gpu, one of them", " and ".join(both) or "neither", remedy)
    python = ".".join(map(str, sys.version_info[:3]))
    yield f"Python {python}, " + ", ".join(f"{name} {_version(name)}" for name in ("ray", "torch", "pyarrow", both[0]))


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _store(store: Store, *, needs_create: bool) -> Iterator[str]:
    check_store(store, creates_once=needs_create)
    yield f"{store.uri}: write, {'create once, ' if needs_create else ''}delete"


def _encoder(job: Job) -> Iterator[str]:
    from pipeline.models.encoder import load_encoder

    encoder = load_encoder(job.encoder, job.encode, resolve(job.encode.device))
    encoder.check()
    of_words = encoder.folder.family == "words"
    what = f"{job.encoder.path}: {encoder.folder.config['vocab_size']:,} words" if of_words else str(encoder.folder.path)
    yield f"{what}: {encoder.dim} dimensions, {encoder.max_length} tokens, space {encoder.space_id[:16]}"


def _index(job: Job) -> Iterator[str]:
    check_kind(job)
    yield f"{job.index.kind}: can be made of this encoder's vectors"


def _corpus(job: Job) -> Iterator[str]:
    files = list_files(job.corpus)
    looked = survey(files, job.corpus)
    usable = [file for file in files if file.name not in looked.refused]
    rows = good = distinct = 0
    for file in usable[:: max(1, len(usable) // _SAMPLED_FILES)][:_SAMPLED_FILES]:
        for batch in islice(read_batches(file, job.corpus, looked.columns), _SAMPLED_BATCHES):
            rows += batch.rows
            good += batch.good.num_rows
            distinct += pc.count_distinct(batch.good["id"]).as_py()
    if not good:
        raise ConfigError(job.corpus.uri, "rows with an id and a text", f"none among the first {rows}", "check corpus.id and corpus.text")
    repeated = f", {good - distinct:,} repeated ids (the first of each is kept)" if good > distinct else ", ids unique"
    refused = f", {len(looked.refused)} unusable files" if looked.refused else ""
    yield f"{len(files)} files{refused}; of {rows:,} sampled rows {rows - good:,} would be quarantined{repeated}"


def _space(job: Job) -> Iterator[str]:
    """Room for the vectors and what comes with them."""
    free = open_store(job.release.root).free_bytes()
    if free is None:
        yield "an object store: no limit known"
        return
    files = list_files(job.corpus)
    counts = survey(files, job.corpus).rows
    rows = sum(counts.get(file.name) or file.size // 100 for file in files)      # JSON lines: about 100 bytes a row
    needed = int(_ROOM * rows * open_folder(job.encoder).dim * 4)
    if free < needed:
        raise ConfigError(job.release.root, f"about {size(needed)} free", size(free), "make room (manta releases prune), or choose another release.root")
    yield f"{size(free)} free, about {size(needed)} needed"


def _cluster(job: Job, stages: Stages, verbose: bool) -> Iterator[str]:
    from pipeline.flows.cluster import connect

    with connect(job.cluster, stages, verbose=verbose) as cluster:
        workers = cluster.workers(job.cluster, 1_000_000)
        yield f"{cluster.cpus} CPUs, {cluster.gpus} GPUs: {workers} encode workers"
