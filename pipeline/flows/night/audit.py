"""A published release measured against the gates: its index, compared with exact search over its vectors."""

from dataclasses import dataclass

import numpy as np
import pyarrow.parquet as pq

from pipeline.errors import DataError
from pipeline.flows.corpus import open_releases
from pipeline.flows.night.gates import RepeatedIds
from pipeline.flows.night.outside import affine_of, outside_gates
from pipeline.flows.night.previous import load_previous
from pipeline.flows.rows import LiveRows, placed_units
from pipeline.flows.run import Run
from pipeline.flows.workers.cluster import connect
from pipeline.flows.workers.tasks import PlainTask, Pool
from pipeline.index.gates import judge
from pipeline.index.measured import Counted, Measured
from pipeline.log import Stages
from pipeline.settings import IndexSettings, Job
from pipeline.store.base import Store
from pipeline.store.manifest import Gate, ReleaseManifest
from pipeline.store.verify import check_sizes
from pipeline.text.tokens.coverage import ScriptCoverage


@dataclass(frozen=True)
class Remeasured:
    """The gates of a published release, with everything that was measured on its index."""

    release: int
    gates: dict[str, Gate]
    measured: Measured


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
            current.lost,
            "restore it, roll back, or run a night",
        )
    check_sizes(releases.store, manifest)  # before Ray starts, whose tasks would meet the damage one by one
    with connect(job.cluster, stages, verbose=verbose) as workers, stages("evaluate", manifest.rows) as bar:
        measured, bad = workers.run(MeasureRelease(releases.store, job.index, manifest), None, Pool(1))
        repeated = workers.run(RepeatedIds(releases.store), corpus, Pool(1))
        outside = outside_gates(Run(job, releases.store, workers, stages), manifest)
        bar.add(manifest.rows)
    covered = ScriptCoverage.of(manifest.counts)
    counted = Counted(
        read=manifest.counts["total"],
        vectors=manifest.rows,
        quarantined=manifest.counts["quarantined"],
        bad_vectors=bad,
        duplicate_ids=repeated,
        covered=covered if covered.scripts else None,
        most_quarantined=job.corpus.max_quarantined,
    )
    return Remeasured(manifest.release, judge(measured, counted, job.gates) | outside, measured)


@dataclass(frozen=True)
class MeasureRelease(PlainTask[None, tuple[Measured, int]]):
    """Measure recall, latency and size of an index at its stored effort, and count unusable vectors."""

    store: Store
    settings: IndexSettings
    manifest: ReleaseManifest

    def work(self, _: None) -> tuple[Measured, int]:
        from pipeline.index.measure import measure_parts
        from pipeline.index.parts import load_parts
        from pipeline.index.truth import ExactTopK, Queries

        store, manifest = self.store, self.manifest
        units = tuple(placed for placed in placed_units(manifest) if placed.unit.rows)
        id_name = pq.ParquetFile(units[0].unit.file.open(store)).schema_arrow.names[0]
        source = LiveRows(store, manifest.space_id, id_name, manifest.dead)
        queries = Queries(*source.sample(units, self.settings.queries, "evaluate"))
        fold = ExactTopK(queries, affine_of(store, manifest))
        truth, bad = fold.none(), 0
        for addresses, vectors in source.batches(units):
            lengths = np.einsum("nd,nd->n", vectors, vectors)
            bad += int(np.count_nonzero(~np.isfinite(lengths) | (lengths == 0)))
            truth = fold.merge(truth, fold.of([(addresses, vectors)]))
        measured = measure_parts(load_parts(store, manifest.index.files, manifest.tombstones), queries, truth)
        size = sum(file.bytes for file in manifest.index.files)
        return measured.model_copy(update={"file_bytes": size}), bad
