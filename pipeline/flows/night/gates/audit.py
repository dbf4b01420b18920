"""Measure the gates of a published release again, by exact search over its vectors: one command's flow."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.parquet as pq

from pipeline.errors import DataError
from pipeline.flows.context import FlowContext
from pipeline.flows.corpus import open_releases
from pipeline.flows.index.records import load_queries, store_queries
from pipeline.flows.index.released import StoredTruth, scan_release, use_index
from pipeline.flows.night.gates.relevance import measure_relevance
from pipeline.flows.night.key_facts import read_keys
from pipeline.flows.night.previous_release import load_previous
from pipeline.flows.night.user_queries import (
    EncodedQueries,
    check_same_space,
    encode_user_queries,
    user_query_gates,
)
from pipeline.flows.rows import LiveRows, units_by_ordinal
from pipeline.flows.workers.cluster import connect
from pipeline.flows.workers.tasks import PlainTask, Pool
from pipeline.index.gates import RowMetrics, judge
from pipeline.index.measure.metrics import IndexMetrics
from pipeline.log import Stages
from pipeline.settings import Job
from pipeline.store.files.base import Store
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.releases.manifest import Gate, ReleaseManifest
from pipeline.store.releases.release import Releases, no_release
from pipeline.store.releases.verify import check_sizes
from pipeline.text.tokens.coverage import ScriptCoverage

if TYPE_CHECKING:
    from pipeline.index.measure.searched_parts import SearchedParts


@dataclass(frozen=True)
class Remeasured:
    """The gates of a published release, measured again, with all metrics of its index."""

    release: int
    gates: dict[str, Gate]
    measured: IndexMetrics


def remeasure(job: Job, stages: Stages, *, verbose: bool = False) -> Remeasured:
    """Measure the gates of the current release again, with the thresholds of the job.

    Raises:
        DataError: there is no release, or one of its files is missing or damaged.
    """
    releases = open_releases(job)
    current = load_previous(releases)
    manifest, corpus = current.release, current.corpus
    if manifest is None:
        raise no_release(releases.store)
    if corpus is None:
        raise DataError(
            f"release {manifest.release}",
            "its corpus record",
            current.corpus_problem or "none",
            "restore it, roll back, or run a night",
        )
    # Checked before Ray starts, because in Ray each damaged file would fail a task of its own.
    check_sizes(releases.store, manifest)
    stores = {"release.root": releases.store}
    with (
        connect(job.cluster, stages, verbose=verbose, stores=stores) as workers,
        stages("evaluate", manifest.rows) as bar,
    ):
        context = FlowContext(job, releases.store, workers, stages)
        check_same_space(job, manifest)
        users = encode_user_queries(context)
        measured, bad = _measure_release(context, manifest, users)
        repeated = read_keys(context, corpus).repeated_ids
        reported = user_query_gates(job, users, measured)
        if relevance := measure_relevance(context, corpus, manifest, _parent(releases, manifest)):
            reported |= relevance.gates
        bar.add(manifest.rows)
    covered = ScriptCoverage.of(manifest.counts)
    rows = RowMetrics(
        manifest.row_counts,
        bad_vectors=bad,
        duplicate_ids=repeated,
        token_coverage=covered if covered.scripts else None,
        max_quarantined=job.corpus.max_quarantined,
    )
    return Remeasured(manifest.release, judge(measured, rows, job.gates) | reported, measured)


def _parent(releases: Releases, manifest: ReleaseManifest) -> ReleaseManifest | None:
    """Return the release before `manifest`; None if there is none or if it was pruned."""
    if manifest.parent is None or manifest.parent not in releases.numbers():
        return None
    return releases.get(manifest.parent)


@dataclass(frozen=True)
class SampleRelease(PlainTask[ReleaseManifest, FileRef]):
    """Sample live rows of a release as queries. Returns the file of their addresses and raw vectors."""

    store: Store
    count: int
    users: FileRef | None = None
    """texts of users, which follow the rows"""

    def work(self, manifest: ReleaseManifest) -> FileRef:
        units = tuple(unit for unit in units_by_ordinal(manifest) if unit.rows)
        id_name = pq.ParquetFile(units[0].file.open(self.store)).schema_arrow.names[0]
        source = LiveRows(self.store, manifest.space_id, id_name, manifest.dead)
        # not the rows that the gates used as queries, because the search effort was chosen on them
        addresses, vectors = source.sample(units, self.count, "held out")
        if self.users is not None:
            users = load_queries(self.store, self.users)
            addresses = np.concatenate([addresses, users.addresses])
            vectors = np.concatenate([vectors, users.vectors])
        with self.store.scratch() as scratch:
            return store_queries(self.store, addresses, vectors, scratch)


@dataclass(frozen=True)
class MeasureIndex:
    """Measure an index as searchers use it: recall, latency and balance."""

    truth: StoredTruth

    def __call__(self, parts: "SearchedParts") -> IndexMetrics:
        """Measure all parts together."""
        from pipeline.index.measure.measure import measure_parts

        return measure_parts(parts, *self.truth.load())


def _measure_release(
    context: FlowContext, manifest: ReleaseManifest, users: EncodedQueries | None
) -> tuple[IndexMetrics, int]:
    """Measure the index of a release. Returns the metrics, and the number of rows without usable vector."""
    task = SampleRelease(context.store, context.job.index.queries, users.file if users else None)
    truth = scan_release(context, manifest, context.workers.run(task, manifest, Pool(1)))
    measured = use_index(context, manifest, MeasureIndex(truth))
    size = sum(file.bytes for file in manifest.index.files)
    return measured.model_copy(update={"file_bytes": size}), truth.unusable
