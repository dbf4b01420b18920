"""The work of workers to extend an index: change last night's file, or make a delta beside it."""

from dataclasses import dataclass
from itertools import chain

from pipeline.errors import DataError
from pipeline.flows.index.delta import Surveyed
from pipeline.flows.index.records import ShardRecord, TrainedIndex, load_queries, store_truth
from pipeline.flows.index.tasks import Build, filled_parts, with_progress
from pipeline.flows.rows import PlacedUnit
from pipeline.flows.workers.tasks import PlainTask
from pipeline.store.base import Store
from pipeline.store.dead import Dead
from pipeline.store.manifest import ReleaseManifest
from pipeline.store.once import put_by_content, remembered
from pipeline.store.stored import FileRef, Stored


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
    """reason why last night's files cannot be extended"""

    def is_complete(self, store: Store) -> bool:
        """Return whether every file exists with its size; False if it is unusable."""
        return self.added is not None and super().is_complete(store)


@dataclass(frozen=True)
class Extension:
    """Values that all steps of one night's extension share."""

    build: Build
    before: ReleaseManifest
    surveyed: Surveyed
    units: tuple[PlacedUnit, ...]
    """units with live rows, by ordinal"""
    counts: tuple[int, ...]
    """number of live rows of each"""

    @property
    def trained(self) -> TrainedIndex:
        """Last night's training and queries."""
        index = self.before.index
        assert index.trained is not None
        assert index.queries is not None
        return TrainedIndex(index=index.trained, queries=index.queries)

    def since(self, ordinal: int) -> tuple[PlacedUnit, ...]:
        """Return the units from an ordinal on."""
        return tuple(placed for placed in self.units if placed.ordinal >= ordinal)

    def rows_since(self, ordinal: int) -> int:
        """Count the live rows of the units from an ordinal on."""
        return sum(
            count for placed, count in zip(self.units, self.counts, strict=True) if placed.ordinal >= ordinal
        )


@dataclass(frozen=True)
class GrowInPlace(PlainTask[None, Grown]):
    """Remove the dead rows from last night's index, add the rows of new units, and write index and ids.

    The quantizer stays.
    """

    extension: Extension

    def work(self, _: None) -> Grown:
        build = self.extension.build
        return remembered(build.store, f"{build.work}/grown.json", Grown, self._grow)

    def _grow(self) -> Grown:
        from pipeline.index.build import fill, read_index, remove, threads, write_index
        from pipeline.index.ids import surviving, write_ids
        from pipeline.index.structure import fingerprint
        from pipeline.index.truth import ExactTopK

        extension, before, source = self.extension, self.extension.before, self.extension.build.source
        store, last = source.store, before.index
        try:
            index = read_index(last.files[0].local(store), mapped=False)
            old_ids = [reference.local(store) for reference in before.ids]
        except (FileNotFoundError, DataError) as error:
            return Grown(unusable=str(error))
        new = extension.since(before.next_ordinal)
        gone = Dead.load(store, extension.surveyed.gone).addresses
        truth = ExactTopK(load_queries(store, extension.trained.queries), extension.build.map)
        with store.scratch() as scratch, threads(1):
            removed = remove(index, gone) if len(gone) else 0
            filled = fill(index, with_progress(source.batches(new)), truth)
            expected = len(gone), extension.surveyed.rows, last.settings.get("fingerprint")
            if (removed, index.ntotal, fingerprint(index)) != expected:
                return Grown(
                    unusable=f"it held {removed:,} of the {len(gone):,} rows that are gone, or is not the "
                    f"one that release {before.release} names"
                )
            write_index(index, scratch / "index.faiss")
            write_ids(scratch / "ids.arrow", chain(surviving(old_ids, gone), source.ids(new)))
            return Grown(
                files=(put_by_content(store, scratch / "index.faiss", "indexes/", index.ntotal),),
                ids=(put_by_content(store, scratch / "ids.arrow", "ids/", index.ntotal),),
                added=store_truth(store, filled.neighbours, scratch),
                since=before.next_ordinal,
                base_ordinals=max(last.base_ordinals, *(unit.ordinal + 1 for unit in extension.units)),
            )


@dataclass(frozen=True)
class JoinDelta(PlainTask[tuple[ShardRecord, ...], Grown]):
    """Keep the base as it is, and merge the shards of all later units into one delta beside it."""

    extension: Extension

    def work(self, shards: tuple[ShardRecord, ...]) -> Grown:
        from pipeline.index.build import write_index
        from pipeline.index.effort import set_effort
        from pipeline.index.merge import merge

        before, store = self.extension.before, self.extension.build.store
        last = before.index
        files = last.files[:-1] if last.parts > 1 else last.files
        ids = before.ids[: len(before.ids) - last.delta_ids]
        with store.scratch() as scratch:
            parts, truth = filled_parts(store, shards, load_queries(store, self.extension.trained.queries))
            if parts:
                index = merge(parts)
                if (effort := last.settings.get("effort")) is not None:
                    set_effort(index, effort)
                write_index(index, scratch / "delta.faiss")
                delta = put_by_content(store, scratch / "delta.faiss", "indexes/", index.ntotal)
                files, ids = (*files, delta), (*ids, *(shard.ids for shard in shards))
            return Grown(
                files=files,
                ids=ids,
                delta_ids=len(shards),
                added=store_truth(store, truth, scratch),
                since=last.base_ordinals,
                base_ordinals=last.base_ordinals,
                tombstones=self.extension.surveyed.tombstones,
            )
