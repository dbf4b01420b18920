"""What workers do to extend an index: change last night's file or put a delta beside it, renew exact
neighbours, and measure.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from pipeline.errors import DataError
from pipeline.flows.index.delta import Surveyed
from pipeline.flows.index.tasks import (
    Build,
    BuiltIndex,
    Shard,
    ShardRecord,
    TrainedIndex,
    counted,
    examples,
    filled_parts,
    keep_truth,
    load_queries,
    load_truth,
    sample_queries,
    settings_of,
)
from pipeline.flows.rows import LiveRows, Placed, placed_in
from pipeline.index.measured import Measured
from pipeline.post import Affine
from pipeline.store.address import ordinal_of
from pipeline.store.base import Store
from pipeline.store.dead import Dead
from pipeline.store.manifest import ReleaseManifest
from pipeline.store.once import put_by_content, remembered
from pipeline.store.units import FileRef, Stored

_RANK = 100  # recall is reported down to it


class Grown(Stored):
    """The files of the extended index, before it is measured."""

    files: tuple[FileRef, ...] = ()
    ids: tuple[FileRef, ...] = ()
    delta_ids: int = 0
    added: FileRef | None = None
    """the queries' exact neighbours among the live rows of units from ordinal `since` on"""
    since: int = 0
    base_ordinals: int = 0
    tombstones: FileRef | None = None
    unusable: str = ""
    """why last night's files cannot be extended"""

    def is_complete(self, store: Store) -> bool:
        return self.added is not None and super().is_complete(store)


class Asked(Stored):
    """What is measured with: queries, and their exact neighbours in pieces that together are all live rows;
    without pieces they are carried over from last night.
    """

    queries: FileRef
    pieces: tuple[FileRef, ...] = ()


class Measurement(Stored):
    """The extended index, measured; or why it is not: the carried neighbours reach too short, or last night's
    files cannot be used.
    """

    built: BuiltIndex | None = None
    short_queries: int = 0
    unusable: str = ""


@dataclass(frozen=True)
class Extension:
    """What all steps of one night's extension share."""

    build: Build
    before: ReleaseManifest
    surveyed: Surveyed
    units: tuple[Placed, ...]
    """with live rows, by ordinal"""
    counts: tuple[int, ...]
    """live rows of each"""

    @property
    def trained(self) -> TrainedIndex:
        index = self.before.index
        assert index.trained is not None
        assert index.queries is not None
        return TrainedIndex(index=index.trained, queries=index.queries)

    @property
    def next_ordinal(self) -> int:
        """The ordinal after the last unit."""
        return max(self.before.index.base_ordinals, *(placed.ordinal + 1 for placed in self.units))

    def since(self, ordinal: int) -> tuple[Placed, ...]:
        """Units from that ordinal on."""
        return tuple(placed for placed in self.units if placed.ordinal >= ordinal)

    def rows_since(self, ordinal: int) -> int:
        """Their live rows."""
        return sum(
            count for placed, count in zip(self.units, self.counts, strict=True) if placed.ordinal >= ordinal
        )


@dataclass(frozen=True)
class GrowInPlace:
    """Take the rows that are gone out of last night's index, put the new units' rows into it with the same
    quantizer, and write it and its ids anew.
    """

    extension: Extension

    def start(self) -> Callable[[None], Grown]:
        return self._work

    def _work(self, _: None) -> Grown:
        build, path = self.extension.build, f"{self.extension.build.work}/grown.json"
        return remembered(build.store, path, Grown, self._grown)

    def _grown(self) -> Grown:
        from pipeline.index.build import fill, read_index, remove, threads, write_index
        from pipeline.index.ids import surviving, write_ids
        from pipeline.index.structure import fingerprint
        from pipeline.index.truth import ExactTopK

        build, before, store = self.extension.build, self.extension.before, self.extension.build.store
        try:
            index = read_index(before.index.files[0].local(store), mapped=False)
            old_ids = [reference.local(store) for reference in before.ids]
        except (FileNotFoundError, DataError) as error:
            return Grown(unusable=str(error))
        new, gone = (
            self.extension.since(before.next_ordinal),
            Dead.load(store, self.extension.surveyed.gone).addresses,
        )
        with store.scratch() as scratch, threads(1):
            removed = remove(index, gone) if len(gone) else 0
            filled = fill(
                index,
                counted(build.source.batches(new)),
                ExactTopK(load_queries(store, self.extension.trained.queries), build.map),
            )
            if (
                removed != len(gone)
                or index.ntotal != self.extension.surveyed.rows
                or fingerprint(index) != before.index.settings.get("fingerprint")
            ):
                return Grown(
                    unusable=(
                        f"it held {removed:,} of the {len(gone):,} rows that are gone, or is not the one "
                        f"that release {before.release} names"
                    )
                )
            write_index(index, scratch / "index.faiss")
            write_ids(scratch / "ids.arrow", chain(surviving(old_ids, gone), build.source.ids(new)))
            file = put_by_content(store, scratch / "index.faiss", "indexes/", index.ntotal)
            ids = put_by_content(store, scratch / "ids.arrow", "ids/", index.ntotal)
            added = keep_truth(store, filled.neighbours, scratch)
        return Grown(
            files=(file,),
            ids=(ids,),
            added=added,
            since=before.next_ordinal,
            base_ordinals=self.extension.next_ordinal,
        )


@dataclass(frozen=True)
class JoinDelta:
    """The base as it was, and the shards of all later units as one delta beside it."""

    extension: Extension

    def start(self) -> Callable[[tuple[ShardRecord, ...]], Grown]:
        return self._work

    def _work(self, shards: tuple[ShardRecord, ...]) -> Grown:
        from pipeline.index.build import write_index
        from pipeline.index.effort import set_effort
        from pipeline.index.merge import merge

        extension, before, store = self.extension, self.extension.before, self.extension.build.store
        base_files = before.index.files[:-1] if before.index.parts > 1 else before.index.files
        base_ids = before.ids[: len(before.ids) - before.index.delta_ids]
        since = before.index.base_ordinals
        kept = Grown(
            files=base_files,
            ids=base_ids,
            since=since,
            base_ordinals=since,
            tombstones=extension.surveyed.tombstones,
        )
        queries = load_queries(store, extension.trained.queries)
        with store.scratch() as scratch:
            parts, truth = filled_parts(store, shards, queries)
            kept = kept.model_copy(update={"added": keep_truth(store, truth, scratch)})
            if not parts:
                return kept
            index = merge(parts)
            if (effort := before.index.settings.get("effort")) is not None:
                set_effort(index, effort)
            write_index(index, scratch / "delta.faiss")
            delta = put_by_content(store, scratch / "delta.faiss", "indexes/", index.ntotal)
        ids = tuple(shard.ids for shard in shards)
        return kept.model_copy(
            update={"files": (*base_files, delta), "ids": (*base_ids, *ids), "delta_ids": len(ids)}
        )


@dataclass(frozen=True)
class ScanTruth:
    """The queries' exact neighbours among the live rows of a shard's units. transform: what the index
    computes before its search.
    """

    source: LiveRows
    transform: Affine | None
    queries: FileRef

    def start(self) -> Callable[[Shard], FileRef]:
        return self._work

    def _work(self, shard: Shard) -> FileRef:
        from pipeline.index.build import threads
        from pipeline.index.truth import ExactTopK

        store = self.source.store
        fold = ExactTopK(load_queries(store, self.queries), self.transform)
        with store.scratch() as scratch, threads(1):
            return keep_truth(store, fold.of(counted(self.source.batches(shard.units))), scratch)


@dataclass(frozen=True)
class SampleQueries:
    """Queries sampled anew over all live rows, and a few over dead ones: users go on asking for what was
    deleted.
    """

    build: Build

    def start(self) -> Callable[[tuple[Placed, ...]], FileRef]:
        return self._work

    def _work(self, units: tuple[Placed, ...]) -> FileRef:
        with self.build.store.scratch() as scratch:
            return sample_queries(self.build, units, scratch)


@dataclass(frozen=True)
class MeasureGrown:
    """Recall, latency and balance of the extended index at the effort stored in it.

    Exact neighbours need no scan of all rows: last night's rankings without the rows that are gone, merged
    with the rankings of the new rows that filling found, are exact down to the first rank that either does
    not know (`carry`). 128 ranks are kept where 100 are needed, so at 1 % of dead rows a night a ranking
    lasts for weeks. Where one has become shorter than rank 100 the index is not measured, and the caller
    scans all rows. Queries whose own row died go on being asked: they were rows of the corpus, and with the
    same queries recall can be compared from night to night.
    """

    extension: Extension

    def start(self) -> Callable[[tuple[Grown, Asked]], Measurement]:
        return self._work

    def _work(self, item: tuple[Grown, Asked]) -> Measurement:
        from pipeline.index.measure import measure_parts
        from pipeline.index.near_dead import recall_near_dead
        from pipeline.index.parts import load_parts
        from pipeline.index.structure import fingerprint

        grown, asked = item
        store, rows = self.extension.build.store, self.extension.surveyed.rows
        queries = load_queries(store, asked.queries)
        truth, short = self._scanned(asked, queries) if asked.pieces else self._carried(grown, queries)
        if short:
            return Measurement(short_queries=short)
        try:
            parts = load_parts(store, grown.files, grown.tombstones)
        except (FileNotFoundError, DataError) as error:
            return Measurement(unusable=str(error))
        if parts.ntotal != rows or len({fingerprint(part) for part in parts.indexes}) > 1:
            return Measurement(
                unusable=f"its parts hold {parts.ntotal:,} live rows of one training where {rows:,} are expected"
            )
        measured = measure_parts(parts, queries, truth)
        size = sum(reference.bytes for reference in grown.files)
        near = recall_near_dead(parts, queries, truth, ~self._own(queries))
        measured = measured.model_copy(update={"file_bytes": size, "recall_near_dead": near})
        with store.scratch() as scratch:
            kept = keep_truth(store, truth, scratch)
        return Measurement(
            built=self._built(grown, asked, measured, kept, examples(parts, self._live(queries)))
        )

    def _built(
        self, grown: Grown, asked: Asked, measured: Measured, truth: FileRef, shown: Any
    ) -> BuiltIndex:
        index, plan = self.extension.before.index, self.extension.build.plan
        assert index.trained is not None
        return BuiltIndex(
            kind=index.kind,
            factory=index.factory,
            dim=index.dim,
            parts=1 + (grown.delta_ids > 0),
            files=grown.files,
            ids=grown.ids,
            delta_ids=grown.delta_ids,
            rows=measured.rows,
            settings=settings_of(measured),
            measured=measured,
            examples=shown,
            plan=plan,
            trained=index.trained,
            trained_on=index.trained_on,
            queries=asked.queries,
            truth=truth,
            tombstones=grown.tombstones,
            base_ordinals=grown.base_ordinals,
        )

    def _carried(self, grown: Grown, queries: Any) -> tuple[Any, int]:
        """(exact neighbours as far as they can be told without a scan, queries for which that is too short)."""
        from pipeline.index.truth import ExactTopK, Known, carry

        extension, before, store = self.extension, self.extension.before, self.extension.build.store
        assert before.index.truth is not None
        assert grown.added is not None
        was, added = load_truth(store, before.index.truth), load_truth(store, grown.added)
        stays = ~Dead.load(store, extension.surveyed.gone).holds(was.addresses) & (
            ordinal_of(was.addresses) < grown.since
        )
        known = Known(was, before.rows - _own(queries, placed_in(before), Dead.load(store, before.dead)))
        dead = Dead.load(store, extension.build.source.dead)
        new = Known(
            added, extension.rows_since(grown.since) - _own(queries, extension.since(grown.since), dead)
        )
        truth = carry(ExactTopK(queries, extension.build.map), known, stays, new)
        reaches = Known(truth, extension.surveyed.rows - _own(queries, extension.units, dead)).reaches(_RANK)
        return truth, int((~reaches).sum())

    def _scanned(self, asked: Asked, queries: Any) -> tuple[Any, int]:
        from pipeline.index.truth import ExactTopK

        fold = ExactTopK(queries)
        pieces = (load_truth(self.extension.build.store, piece) for piece in asked.pieces)
        return functools.reduce(fold.merge, pieces, fold.none()), 0

    def _live(self, queries: Any) -> Any:
        """Those queries whose own row is live."""
        return queries[self._own(queries)]

    def _own(self, queries: Any) -> np.ndarray:
        return self.extension.build.source.holds(self.extension.units, queries.addresses)


def _own(queries: Any, units: tuple[Placed, ...], dead: Dead) -> np.ndarray:
    """Mask (q,) of the queries that are a live row of one of the units."""
    there = np.array([placed.ordinal for placed in units], dtype=np.int64)
    return np.isin(ordinal_of(queries.addresses), there) & ~dead.holds(queries.addresses)
