"""A published release measured against the gates, from its own files: the index answers, and exact search
over its units says what it should have answered.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from pipeline.errors import DataError
from pipeline.flows.corpus import open_releases
from pipeline.flows.night.gates import RepeatedIds
from pipeline.flows.night.outside import outside_gates
from pipeline.flows.night.previous import load_previous
from pipeline.flows.rows import LiveRows, placed_in
from pipeline.flows.run import Run
from pipeline.flows.workers.cluster import connect
from pipeline.flows.workers.tasks import Pool
from pipeline.log import Stages
from pipeline.settings import IndexSettings, Job
from pipeline.store.base import Store
from pipeline.store.dead import Dead
from pipeline.store.manifest import Gate, ReleaseManifest
from pipeline.store.verify import check_sizes
from pipeline.text.tokens.coverage import ScriptCoverage


@dataclass(frozen=True)
class Remeasured:
    release: int
    gates: dict[str, Gate]
    measured: dict[str, Any]


def remeasure(job: Job, stages: Stages, *, verbose: bool = False) -> Remeasured:
    """The current release's gates, measured anew with the thresholds of the job."""
    from pipeline.index.validate import Counted, Measured, judge

    releases = open_releases(job)
    before = load_previous(releases)
    manifest, corpus = before.release, before.corpus
    if manifest is None:
        raise DataError(releases.store.uri, "a published release", "none", "run `manta nightly` first")
    if corpus is None:
        raise DataError(
            f"release {manifest.release}",
            "its corpus record",
            before.lost,
            "restore it, roll back, or run a night",
        )
    check_sizes(releases.store, manifest)  # before Ray starts, whose tasks would meet the damage one by one
    with connect(job.cluster, stages, verbose=verbose) as workers, stages("evaluate", manifest.rows) as bar:
        measured, bad = workers.run(MeasureRelease(releases.store, job.index, manifest), None, Pool(1))
        repeated = workers.run(RepeatedIds(releases.store), corpus, Pool(1))
        outside = outside_gates(Run(job, releases.store, workers, stages), manifest)
        bar.add(manifest.rows)
    counts = manifest.counts
    covered = ScriptCoverage.of(counts)
    counted = Counted(
        read=counts["total"],
        vectors=manifest.rows,
        quarantined=counts["quarantined"],
        bad_vectors=bad,
        duplicate_ids=repeated,
        covered=covered if covered.scripts else None,
        most_quarantined=job.corpus.max_quarantined,
    )
    return Remeasured(
        manifest.release, judge(Measured.model_validate(measured), counted, job.gates) | outside, measured
    )


@dataclass(frozen=True)
class MeasureRelease:
    """Recall, latency and size of a release's index at the effort stored in it, and how many of its vectors
    are unusable.
    """

    store: Store
    settings: IndexSettings
    manifest: ReleaseManifest

    def start(self) -> Callable[[None], tuple[dict[str, Any], int]]:
        return self._work

    def _work(self, _: None) -> tuple[dict[str, Any], int]:
        from pipeline.index.finish import measure_parts
        from pipeline.index.parts import open_parts
        from pipeline.index.truth import ExactTopK, Queries
        from pipeline.post import load_transform

        store, manifest = self.store, self.manifest
        units = tuple(placed for placed in placed_in(manifest) if placed.unit.rows)
        id_name = pq.ParquetFile(units[0].unit.file.open(store)).schema_arrow.names[0]
        source = LiveRows(store, manifest.space_id, id_name, manifest.dead)
        queries = Queries(*source.sample(units, self.settings.queries, "evaluate"))
        transform = load_transform(manifest.transform.read(store)).affine() if manifest.transform else None
        fold = ExactTopK(queries, transform)
        truth, bad = fold.none(), 0
        for addresses, vectors in source.batches(units):
            lengths = np.einsum("nd,nd->n", vectors, vectors)
            bad += int(np.count_nonzero(~np.isfinite(lengths) | (lengths == 0)))
            truth = fold.merge(truth, fold.of([(addresses, vectors)]))
        tombstones = Dead.load(store, manifest.tombstones).addresses
        parts = open_parts(manifest.index.files, lambda reference: reference.local(store), tombstones)
        measured = measure_parts(parts, queries, truth)
        size = sum(reference.bytes for reference in manifest.index.files)
        return measured.model_copy(update={"file_bytes": size}).model_dump(mode="json"), bad
