"""Measure the gates of a published release again, with exact search over its vectors."""

from dataclasses import dataclass

import numpy as np
import pyarrow.parquet as pq

from pipeline.errors import DataError
from pipeline.flows.corpus import open_releases
from pipeline.flows.night.gates import count_repeated_ids
from pipeline.flows.night.previous import load_previous
from pipeline.flows.night.user_queries import load_affine, user_query_gates
from pipeline.flows.rows import LiveRows, placed_units
from pipeline.flows.run import Run
from pipeline.flows.workers.cluster import connect
from pipeline.flows.workers.tasks import PlainTask, Pool
from pipeline.index.gates import judge
from pipeline.index.metrics import IndexMetrics, RowCounts
from pipeline.log import Stages
from pipeline.settings import IndexSettings, Job
from pipeline.store.base import Store
from pipeline.store.manifest import Gate, ReleaseManifest
from pipeline.store.verify import check_sizes
from pipeline.text.tokens.coverage import ScriptCoverage


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
        raise DataError(releases.store.uri, "a published release", "none", "run `manta nightly` first")
    if corpus is None:
        raise DataError(
            f"release {manifest.release}",
            "its corpus record",
            current.corpus_problem or "none",
            "restore it, roll back, or run a night",
        )
    # Checked before Ray starts, where each damaged file would fail a task of its own.
    check_sizes(releases.store, manifest)
    with connect(job.cluster, stages, verbose=verbose) as workers, stages("evaluate", manifest.rows) as bar:
        measured, bad = workers.run(MeasureRelease(releases.store, job.index, manifest), None, Pool(1))
        run = Run(job, releases.store, workers, stages)
        repeated, reported = count_repeated_ids(run, corpus), user_query_gates(run, manifest)
        bar.add(manifest.rows)
    covered = ScriptCoverage.of(manifest.counts)
    counts = RowCounts(
        read=manifest.counts["total"],
        vectors=manifest.rows,
        quarantined=manifest.counts["quarantined"],
        bad_vectors=bad,
        duplicate_ids=repeated,
        token_coverage=covered if covered.scripts else None,
        max_quarantined=job.corpus.max_quarantined,
    )
    return Remeasured(manifest.release, judge(measured, counts, job.gates) | reported, measured)


@dataclass(frozen=True)
class MeasureRelease(PlainTask[None, tuple[IndexMetrics, int]]):
    """Measure an index as searchers use it: recall, latency and size; and count unusable vectors."""

    store: Store
    settings: IndexSettings
    manifest: ReleaseManifest

    def work(self, _: None) -> tuple[IndexMetrics, int]:
        from pipeline.index.measure import measure_parts
        from pipeline.index.parts import load_index
        from pipeline.index.truth import ExactTopK, Queries

        store, manifest = self.store, self.manifest
        units = tuple(placed for placed in placed_units(manifest) if placed.unit.rows)
        id_name = pq.ParquetFile(units[0].unit.file.open(store)).schema_arrow.names[0]
        source = LiveRows(store, manifest.space_id, id_name, manifest.dead)
        queries = Queries(*source.sample(units, self.settings.queries, "evaluate"))
        fold = ExactTopK(queries, load_affine(store, manifest))
        truth, bad = fold.empty(), 0
        for addresses, vectors in source.batches(units):
            lengths = np.einsum("nd,nd->n", vectors, vectors)
            bad += int(np.count_nonzero(~np.isfinite(lengths) | (lengths == 0)))
            truth = fold.merge(truth, fold.search([(addresses, vectors)]))
        measured = measure_parts(load_index(store, manifest.index, manifest.tombstones), queries, truth)
        size = sum(file.bytes for file in manifest.index.files)
        return measured.model_copy(update={"file_bytes": size}), bad
