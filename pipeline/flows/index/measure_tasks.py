"""The work of workers to measure an extended index, with exact neighbours that are carried or renewed."""

import functools
from dataclasses import dataclass
from typing import Any

from pipeline.errors import DataError
from pipeline.flows.index.extend_tasks import Extension, Grown
from pipeline.flows.index.records import BuiltIndex, Shard, load_queries, load_truth, store_truth
from pipeline.flows.index.tasks import Build, examples, sample_queries, settings_of, with_progress
from pipeline.flows.rows import LiveRows, PlacedUnit, placed_units
from pipeline.flows.workers.tasks import PlainTask
from pipeline.post import Affine
from pipeline.store.address import ordinal_of
from pipeline.store.dead import Dead
from pipeline.store.stored import FileRef, Stored

_RANK = 100  # recall is reported down to it


class Measurement(Stored):
    """The extended index with its measurements, or the reason why there is none."""

    built: BuiltIndex | None = None
    short_queries: int = 0
    """number of queries whose carried neighbours do not reach the rank that is needed"""
    unusable: str = ""
    """reason why last night's files cannot be used"""


@dataclass(frozen=True)
class ScanTruth(PlainTask[Shard, FileRef]):
    """Find the queries' exact neighbours among the live rows of a shard's units.

    Attributes:
        transform: map that the index applies before its search.
    """

    source: LiveRows
    transform: Affine | None
    queries: FileRef

    def work(self, shard: Shard) -> FileRef:
        from pipeline.index.build import threads
        from pipeline.index.truth import ExactTopK

        store = self.source.store
        fold = ExactTopK(load_queries(store, self.queries), self.transform)
        with store.scratch() as scratch, threads(1):
            return store_truth(store, fold.of(with_progress(self.source.batches(shard.units))), scratch)


@dataclass(frozen=True)
class SampleQueries(PlainTask[tuple[PlacedUnit, ...], FileRef]):
    """Sample new queries over all live rows, and a few dead ones: users still ask for deleted texts."""

    build: Build

    def work(self, units: tuple[PlacedUnit, ...]) -> FileRef:
        with self.build.store.scratch() as scratch:
            return sample_queries(self.build, units, scratch)


@dataclass(frozen=True)
class MeasureGrown(PlainTask[tuple[FileRef, ...], Measurement]):
    """Measure recall, latency and balance of the extended index at the effort stored in it.

    The item is the exact neighbours in pieces that together cover all live rows. Without pieces no scan is
    needed: last night's rankings without the removed rows, merged with the rankings of the new rows, are
    exact down to the first rank that either does not know (`carry`). 128 ranks are kept where 100 are needed,
    so at 1 % of dead rows a night a ranking lasts for weeks. If one has become shorter than 100, the index is
    not measured, and the caller scans all rows. Queries whose own row died are still used: they were rows of
    the corpus, and with the same queries recall can be compared from night to night.
    """

    extension: Extension
    grown: Grown
    queries: FileRef

    def work(self, pieces: tuple[FileRef, ...]) -> Measurement:
        from pipeline.index.measure import measure_parts
        from pipeline.index.near_dead import recall_near_dead
        from pipeline.index.parts import load_parts
        from pipeline.index.structure import fingerprint

        extension, grown = self.extension, self.grown
        source, store, rows = extension.build.source, extension.build.store, extension.surveyed.rows
        queries = load_queries(store, self.queries)
        truth, short = self._scanned(pieces, queries) if pieces else self._carried(queries)
        if short:
            return Measurement(short_queries=short)
        try:
            parts = load_parts(store, grown.files, grown.tombstones)
        except (FileNotFoundError, DataError) as error:
            return Measurement(unusable=str(error))
        if parts.ntotal != rows or len({fingerprint(part) for part in parts.indexes}) > 1:
            return Measurement(
                unusable=f"its parts hold {parts.ntotal:,} live rows of one training where {rows:,} are "
                "expected"
            )
        own = source.holds(extension.units, queries.addresses)
        measured = measure_parts(parts, queries, truth).model_copy(
            update={
                "file_bytes": sum(file.bytes for file in grown.files),
                "recall_near_dead": recall_near_dead(parts, queries, truth, ~own),
            }
        )
        with store.scratch() as scratch:
            kept = store_truth(store, truth, scratch)
        index = extension.before.index
        return Measurement(
            built=BuiltIndex(
                kind=index.kind,
                factory=index.factory,
                dim=index.dim,
                parts=1 + (grown.delta_ids > 0),
                files=grown.files,
                ids=grown.ids,
                delta_ids=grown.delta_ids,
                rows=rows,
                settings=settings_of(measured),
                measured=measured,
                examples=examples(parts, queries[own]),
                plan=extension.build.plan,
                trained=extension.trained.index,
                trained_on=index.trained_on,
                queries=self.queries,
                truth=kept,
                tombstones=grown.tombstones,
                base_ordinals=grown.base_ordinals,
            )
        )

    def _carried(self, queries: Any) -> tuple[Any, int]:
        """Return exact neighbours as far as they are known without a scan, and for how many queries they end
        too early.
        """
        from pipeline.index.truth import ExactTopK, Known, carry

        extension, grown, before = self.extension, self.grown, self.extension.before
        source, store, units = extension.build.source, extension.build.store, extension.units
        assert before.index.truth is not None
        assert grown.added is not None
        last, added = load_truth(store, before.index.truth), load_truth(store, grown.added)
        gone = Dead.load(store, extension.surveyed.gone).holds(last.addresses)
        stays = ~gone & (ordinal_of(last.addresses) < grown.since)
        then = LiveRows(store, source.space_id, source.id_name, before.dead)
        known = Known(last, before.rows - then.holds(placed_units(before), queries.addresses))
        own = source.holds(extension.since(grown.since), queries.addresses)
        new = Known(added, extension.rows_since(grown.since) - own)
        truth = carry(ExactTopK(queries, extension.build.map), known, stays, new)
        others = extension.surveyed.rows - source.holds(units, queries.addresses)
        return truth, int((~Known(truth, others).reaches(_RANK)).sum())

    def _scanned(self, pieces: tuple[FileRef, ...], queries: Any) -> tuple[Any, int]:
        from pipeline.index.truth import ExactTopK

        fold, store = ExactTopK(queries), self.extension.build.store
        return functools.reduce(fold.merge, (load_truth(store, piece) for piece in pieces)), 0
