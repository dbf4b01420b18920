"""Tasks that measure an extended index against exact neighbours, which are updated or searched again."""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pipeline.errors import DataError
from pipeline.flows.context import FlowContext, ItemNeeds, map_in_order
from pipeline.flows.index.build import divide_units, part_memory
from pipeline.flows.index.extend_tasks import ExtendedParts, Extension, with_effort
from pipeline.flows.index.finish_tasks import example_queries, reader_settings, rows_effort_of
from pipeline.flows.index.records import BuiltIndex, file_fields, load_queries, load_truth, store_truth
from pipeline.flows.index.tasks import Build, sample_queries, with_progress
from pipeline.flows.rows import LiveRows, units_by_ordinal
from pipeline.flows.workers.tasks import PlainTask, Pool
from pipeline.index.measure.metrics import IndexMetrics
from pipeline.log import RunningStage
from pipeline.settings import GateSettings
from pipeline.store.records.dead import DeadRows
from pipeline.store.records.release_units import VectorUnit
from pipeline.store.records.sealed_json import FileRef, Stored
from pipeline.store.rows.address import ordinal_of
from pipeline.transforms.transform import Affine

if TYPE_CHECKING:
    from pipeline.index.measure.measure import KeptEffort
    from pipeline.index.measure.searched_parts import SearchedParts
    from pipeline.index.measure.truth import Neighbours, Queries

# Components of vectors that one task compares with the queries (256 MiB of float32), and largest number of
# tasks. Each task stores the neighbours of a thousand queries, which take 1.5 MB.
_SCAN_VALUES, _MAX_SCANS = 1 << 26, 512
_NEIGHBOURS = 100  # exact neighbours that each query needs: the largest k of the reported recalls


class Measurement(Stored):
    """The extended index with its measurements, or the reason why there is none."""

    built: BuiltIndex | None = None
    short_queries: int = 0
    """number of queries with too few exact neighbours, after last night's neighbours were updated"""
    unusable: str = ""
    """reason why last night's files cannot be used"""


class ScannedRows(NamedTuple):
    """Result of a scan of live rows."""

    truth: FileRef
    """file of the queries' exact neighbours among the rows"""
    unusable: int
    """number of rows whose vector is zero or not finite"""


@dataclass(frozen=True)
class ScanTruth(PlainTask[tuple[VectorUnit, ...], ScannedRows]):
    """Find the queries' exact neighbours among the live rows of units."""

    source: LiveRows
    """live rows"""
    transform: Affine | None
    """affine map that the index applies to vectors and queries"""
    queries: FileRef
    """file of the queries"""
    on_gpu: bool = False
    """whether to compare on the worker's GPUs"""

    def work(self, units: tuple[VectorUnit, ...]) -> ScannedRows:
        from pipeline.index.gpu import check_gpus
        from pipeline.index.library import faiss_threads
        from pipeline.index.measure.truth import ExactTopK

        if self.on_gpu:
            check_gpus()
        store = self.source.store
        exact = ExactTopK(load_queries(store, self.queries), self.transform, on_gpu=self.on_gpu)
        unusable = 0

        def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
            nonlocal unusable
            for addresses, vectors in with_progress(self.source.batches(units)):
                lengths = np.einsum("nd,nd->n", vectors, vectors)
                unusable += int(np.count_nonzero(~np.isfinite(lengths) | (lengths == 0)))
                yield addresses, vectors

        with store.scratch() as scratch, faiss_threads(1):
            truth = store_truth(store, exact.search(batches()), scratch)
        return ScannedRows(truth, unusable)


def scan_truth(
    context: FlowContext,
    task: ScanTruth,
    units: Sequence[VectorUnit],
    dim: int,
    bar: RunningStage | None = None,
) -> tuple[ScannedRows, ...]:
    """Find the queries' exact neighbours among the live rows of units.

    The number of groups depends only on the rows, so workers that a cluster adds meanwhile have work.

    Args:
        units: at least one unit, by ordinal.
        dim: dimension of the vectors.

    Returns:
        One result per group of units.
    """
    values, gpus = dim * sum(unit.rows for unit in units), context.job.cluster.index_gpus
    groups = divide_units(units, min(_MAX_SCANS, -(-values // _SCAN_VALUES)))
    return map_in_order(context, replace(task, on_gpu=gpus > 0), groups, bar, ItemNeeds(gpus=gpus))


@dataclass(frozen=True)
class SampleQueries(PlainTask[tuple[VectorUnit, ...], FileRef]):
    """Sample new queries over all live rows, and a few dead ones: users still search for deleted texts."""

    build: Build

    def work(self, units: tuple[VectorUnit, ...]) -> FileRef:
        with self.build.store.scratch() as scratch:
            return sample_queries(self.build, units, scratch)


@dataclass(frozen=True)
class MeasureGrown(PlainTask[tuple[FileRef, ...], Measurement]):
    """Measure recall, latency and balance of the extended index at last night's effort, or choose another.

    The item is files of exact neighbours that together cover all live rows. Without such files, last night's
    neighbours are updated (`carry_over`): dead rows are dropped, and neighbours among the new rows are
    merged in. The result is exact down to the first rank at which the old or the new list ends. 128
    neighbours are stored where 100 are needed, so at 1 % of dead rows a night they suffice for weeks. If a
    query has fewer than 100, the index is not measured, and the caller scans all rows. A query whose own row
    has died is still used: with the same queries, recall can be compared from night to night.
    """

    extension: Extension
    extended: ExtendedParts
    queries: FileRef

    def work(self, pieces: tuple[FileRef, ...]) -> Measurement:
        from pipeline.index.files.parts import load_parts

        return self.measure(
            pieces,
            lambda _: load_parts(self.extension.build.store, self.extended.files, self.extended.tombstones),
        )

    def measure_on(self, context: FlowContext, pieces: tuple[FileRef, ...]) -> Measurement:
        """Measure on one worker. Several parts are measured in this process, while workers search them."""
        if len(self.extended.parts) == 1:
            build = self.extension.build
            memory = (
                part_memory(build) if build.user_queries else 0.0
            )  # a file with another effort is written
            return context.workers.run(self, pieces, Pool(1, memory=memory))
        from pipeline.flows.index.parts_on_workers import PartFiles, PartsOnWorkers

        files = PartFiles(context.store, self.extended.tombstones)
        parts, trained = self.extended.parts, self.extension.trained.index
        return self.measure(
            pieces, lambda queries: PartsOnWorkers(context, files, parts, trained, queries.addresses)
        )

    def measure(
        self, pieces: tuple[FileRef, ...], open_index: Callable[["Queries"], "SearchedParts"]
    ) -> Measurement:
        """Measure the index.

        Args:
            open_index: opens the parts of the index, in which the queries' rows can be looked up.
        """
        extension, rows = self.extension, self.extension.survey.rows
        queries = load_queries(extension.build.store, self.queries)
        truth, short = (self._merge(pieces, queries), 0) if pieces else self._update_truth(queries)
        if short:
            return Measurement(short_queries=short)
        try:
            parts = open_index(queries)
            held_rows = parts.ntotal  # parts on workers are opened to count their rows
        except (FileNotFoundError, DataError) as error:
            return Measurement(unusable=str(error))
        if held_rows != rows or len(parts.fingerprints()) > 1:
            return Measurement(
                unusable=f"its parts contain {held_rows:,} live rows where {rows:,} are expected, or were "
                "trained apart"
            )
        return Measurement(built=self._measured_index(parts, queries, truth))

    def _measured_index(self, parts: "SearchedParts", queries: "Queries", truth: "Neighbours") -> BuiltIndex:
        """Measure the opened parts, store the exact neighbours, and return the record of the index."""
        from pipeline.index.measure.measure import measure_extended, recall_near_dead

        extension, extended, index = self.extension, self.extended, self.extension.previous.index
        store = extension.build.store
        is_live = extension.build.source.holds(extension.units, queries.addresses)
        measured = measure_extended(parts, queries, truth, self._kept_effort())
        near = recall_near_dead(parts, queries, truth, ~is_live & ~queries.of_users)
        made = extended.parts
        if measured.effort is not None and measured.effort != index.settings.get("effort"):
            made = with_effort(store, made, measured.effort)
        measured = measured.model_copy(
            update={"file_bytes": sum(file.bytes for file in extended.files), "recall_near_dead": near}
        )
        with store.scratch() as scratch:
            stored_truth = store_truth(store, truth, scratch)
        return BuiltIndex(
            kind=index.kind,
            factory=index.factory,
            dim=index.dim,
            **file_fields(made),
            delta_ids=sum(len(part.ids) for part in extended.delta),
            rows=extension.survey.rows,
            settings=reader_settings(measured),
            measured=measured,
            examples=example_queries(parts, queries[is_live]),
            plan=extension.build.plan,
            trained=extension.trained.index,
            trained_on=self._trained_on(measured),
            queries=self.queries,
            truth=stored_truth,
            tombstones=extended.tombstones,
            base_ordinals=extended.base_ordinals,
        )

    def _kept_effort(self) -> "KeptEffort":
        """Return last night's search effort, and whether it may change."""
        from pipeline.index.measure.measure import KeptEffort

        build, previous = self.extension.build, self.extension.previous
        last = previous.index.settings.get("effort")
        gates = GateSettings.model_validate(
            {
                name: previous.settings.get("gates", {}).get(name)
                for name in ("queries", "recall_at_10", "recall_at_10_queries")
            }
        )
        target = build.gates.wanted_user_recall
        return KeptEffort(
            effort=last,
            rows_effort=int(found) if (found := previous.index.trained_on.get("rows_effort")) else last,
            target=target,
            is_fixed=build.settings.nprobe is not None,
            is_same_choice=self.extension.asked.are_same_users and gates.wanted_user_recall == target,
        )

    def _trained_on(self, measured: IndexMetrics) -> dict[str, float | int | None]:
        """Return what later nights are compared with: tonight's recall, if the effort changed."""
        index = self.extension.previous.index
        if measured.effort == index.settings.get("effort"):
            return index.trained_on
        tonight = {"recall_at_10": measured.recall["10"].value, **rows_effort_of(measured)}
        if measured.recall_near_dead:
            tonight["recall_near_dead"] = measured.recall_near_dead.value
        return index.trained_on | tonight

    def _update_truth(self, queries: "Queries") -> tuple["Neighbours", int]:
        """Update last night's exact neighbours.

        Returns:
            The neighbours, and the number of queries that have fewer of them than needed.
        """
        from pipeline.index.measure.truth import ExactTopK, KnownRanking, carry_over

        extension, extended, previous = self.extension, self.extended, self.extension.previous
        source, store, first_added = extension.build.source, extension.build.store, extended.first_added
        assert extension.asked.truth is not None
        last, added = load_truth(store, extension.asked.truth), load_truth(store, extended.added)
        gone = DeadRows(store, extension.survey.gone).contains(last.addresses)
        stays = ~gone & (ordinal_of(last.addresses) < first_added)
        # A query that is a live row does not count as its own neighbour, so it has one possible neighbour
        # less.
        last_source = LiveRows(store, source.space_id, source.id_name, previous.dead)
        was_live = last_source.holds(units_by_ordinal(previous), queries.addresses)
        is_added = source.holds(extension.units_from(first_added), queries.addresses)
        is_live = source.holds(extension.units, queries.addresses)
        known = KnownRanking(last, previous.rows - was_live)
        new = KnownRanking(added, extension.live_rows_from(first_added) - is_added)
        truth = carry_over(ExactTopK(queries, extension.build.affine), known, stays, new)
        complete = KnownRanking(truth, extension.survey.rows - is_live).reaches(_NEIGHBOURS)
        return truth, int((~complete).sum())

    def _merge(self, pieces: tuple[FileRef, ...], queries: "Queries") -> "Neighbours":
        """Merge the exact neighbours among groups of rows into the exact neighbours among all rows."""
        from pipeline.index.measure.truth import ExactTopK

        exact, store = ExactTopK(queries), self.extension.build.store
        return functools.reduce(exact.merge, (load_truth(store, piece) for piece in pieces))
