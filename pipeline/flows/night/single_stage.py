"""Run a night up to one of its stages, for the commands encode, count, whiten and index."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pyarrow as pa

from pipeline.flows.context import FlowContext
from pipeline.flows.corpus import harvest_corpus, open_releases
from pipeline.flows.encode.count_tokens import count_tokens, without_counts
from pipeline.flows.encode.encode import encode, vector_units
from pipeline.flows.index.records import BuiltIndex
from pipeline.flows.night.key_facts import read_keys
from pipeline.flows.night.nightly import build_candidate
from pipeline.flows.night.previous_release import PreviousRelease, load_previous
from pipeline.flows.night.steps import check_index_and_transform, check_root, ingest_corpus
from pipeline.flows.rows import LiveRows
from pipeline.flows.transform.decide import Decision, check_dev, decide_transform
from pipeline.flows.transform.train_flow import check_flow
from pipeline.flows.transform.write import write_whitened
from pipeline.flows.workers.cluster import connect
from pipeline.log import Stages
from pipeline.models.folder.folder import announce_warnings, open_folder
from pipeline.settings import Job
from pipeline.store.files.base import Store
from pipeline.store.records.units import Corpus, StageRecord
from pipeline.transforms.chain import check_transform


class EncodedCorpus(NamedTuple):
    """A corpus and its vectors, below one root."""

    store: Store
    corpus: Corpus
    vectors: StageRecord


def encode_corpus(job: Job, stages: Stages, *, verbose: bool = False) -> EncodedCorpus:
    """Run a night up to the units of vectors."""
    with _started(job, stages, verbose) as (context, previous, corpus):
        vectors, _ = encode(context, corpus, previous.release, previous.waiting)
    return EncodedCorpus(context.store, corpus, vectors)


class TokenCountFile(NamedTuple):
    """A stored file with the number of occurrences of each token in a corpus."""

    store: Store
    path: str
    table: pa.Table
    """the file's content; see `count_tokens`"""


def count_corpus_tokens(job: Job, stages: Stages, *, verbose: bool = False) -> TokenCountFile:
    """Read the corpus, count its tokens and store the counts."""
    job = job.model_copy(update={"encoder": without_counts(job.encoder)})
    with _started(job, stages, verbose) as (context, _, corpus):
        return TokenCountFile(context.store, *count_tokens(context, corpus))


class TransformedCorpus(NamedTuple):
    """The decision about the transform of a corpus, and the transformed vectors."""

    store: Store
    decision: Decision
    written: StageRecord | None
    """None without whiten.write_vectors, or without a fitted transform"""


def fit_corpus_transform(job: Job, stages: Stages, *, verbose: bool = False) -> TransformedCorpus:
    """Run a night up to the transform.

    With whiten.write_vectors the transformed vectors are written as units too.
    """
    check_transform(job.whiten, indexed=False)
    check_dev(job.whiten)
    check_flow(job.whiten, open_folder(job.encoder).dim)
    written = None
    with _started(job, stages, verbose) as (context, previous, corpus):
        vectors, _ = encode(context, corpus, previous.release)
        source = LiveRows(context.store, open_folder(job.encoder).space_id, job.corpus.id, corpus.dead)
        decision = decide_transform(
            context, source, corpus, vector_units(job, corpus, vectors), previous.release
        )
        if job.whiten.write_vectors and decision.fitted:
            written = write_whitened(context, vectors, decision.fitted)
    return TransformedCorpus(context.store, decision, written)


def index_corpus(job: Job, stages: Stages, *, verbose: bool = False) -> tuple[Store, BuiltIndex]:
    """Run a night up to the index that it would publish, built and measured."""
    check_index_and_transform(job)
    with _started(job, stages, verbose) as (context, previous, corpus):
        distinct_texts = read_keys(context, corpus).distinct_texts
        return context.store, build_candidate(context, previous, corpus, distinct_texts).built


@contextmanager
def _started(
    job: Job, stages: Stages, verbose: bool
) -> Iterator[tuple[FlowContext, PreviousRelease, Corpus]]:
    """Read the corpus, then connect to workers for the duration of the block."""
    check_root(job)
    announce_warnings(open_folder(job.encoder))  # an unusable encoder shows before any work
    harvest_corpus(job, stages)
    releases = open_releases(job)
    previous = load_previous(releases)
    corpus = ingest_corpus(job, releases, previous, stages)
    stores = {"release.root": releases.store}
    with connect(job.cluster, stages, verbose=verbose, stores=stores) as workers:
        yield FlowContext(job, releases.store, workers, stages), previous, corpus
