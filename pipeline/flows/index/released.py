"""Measure the index of a release: find exact neighbours among its live rows, and search its parts."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from pipeline.flows.context import FlowContext
from pipeline.flows.index.build import live_units
from pipeline.flows.index.measure_tasks import ScanTruth, scan_truth
from pipeline.flows.index.records import load_queries, load_truth
from pipeline.flows.rows import LiveRows, units_by_ordinal
from pipeline.flows.workers.tasks import PlainTask, Pool
from pipeline.store.files.base import Store
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.releases.manifest import ReleaseManifest
from pipeline.transforms.transform import Affine, load_transform

if TYPE_CHECKING:
    from pipeline.index.measure.searched_parts import SearchedParts
    from pipeline.index.measure.truth import Neighbours, Queries

Result = TypeVar("Result")
_NO_ROWS = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class StoredTruth:
    """Queries in a file, and their exact neighbours in other files, one for each group of rows."""

    store: Store
    queries: FileRef
    files: tuple[FileRef, ...]
    unusable: int = 0
    """number of rows whose vector is zero or not finite"""

    def load(self) -> "tuple[Queries, Neighbours]":
        """Load the queries, and their neighbours among all rows."""
        from pipeline.index.measure.truth import ExactTopK

        queries = load_queries(self.store, self.queries)
        found = (load_truth(self.store, file) for file in self.files)
        return queries, reduce(ExactTopK(queries).merge, found)


def scan_release(context: FlowContext, manifest: ReleaseManifest, queries: FileRef) -> StoredTruth:
    """Find the exact neighbours of stored queries among all live rows of a release."""
    source = LiveRows(context.store, manifest.space_id, context.job.corpus.id, manifest.dead)
    units, _ = live_units(context.workers, source, units_by_ordinal(manifest))
    task = ScanTruth(source, load_affine(context.store, manifest), queries)
    scanned = scan_truth(context, task, units, manifest.index.dim)
    unusable = sum(each.unusable for each in scanned)
    return StoredTruth(context.store, queries, tuple(each.truth for each in scanned), unusable)


def load_affine(store: Store, release: ReleaseManifest) -> Affine | None:
    """Load the release's transform as an affine map; None if it has no transform."""
    return load_transform(release.transform.read(store)).affine() if release.transform else None


@dataclass(frozen=True)
class UseIndex(PlainTask["Callable[[SearchedParts], Result]", Result], Generic[Result]):
    """Open the whole index of a release, and apply a function to it."""

    store: Store
    manifest: ReleaseManifest

    def work(self, function: "Callable[[SearchedParts], Result]") -> Result:
        from pipeline.index.files.parts import load_index

        return function(load_index(self.store, self.manifest.index, self.manifest.tombstones))


def use_index(
    context: FlowContext, manifest: ReleaseManifest, function: "Callable[[SearchedParts], Result]"
) -> Result:
    """Apply a function to the index of a release or candidate, at the search effort of its manifest.

    If the index has several parts, the function runs in this process while workers search the parts: no
    machine then needs more than one part at a time.

    Args:
        function: searches or measures the index, without looking up rows in it; can be pickled.
    """
    index = manifest.index
    if index.parts == 1 or index.trained is None:  # early versions stored no training, and at most one delta
        task: UseIndex[Result] = UseIndex(context.store, manifest)
        return context.workers.run(task, function, Pool(1))
    from pipeline.flows.index.parts_on_workers import PartFiles, PartsOnWorkers
    from pipeline.index.measure.search_effort import set_effort

    files = PartFiles(context.store, manifest.tombstones)
    parts = PartsOnWorkers(context, files, manifest.index_parts(), index.trained, _NO_ROWS)
    if (effort := index.settings.get("effort")) is not None:
        set_effort(parts, effort)
    return function(parts)
