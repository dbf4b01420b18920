"""Tasks that extend an index: change last night's parts, and merge the exact neighbours in new parts."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipeline.errors import DataError
from pipeline.flows.index.finish_tasks import joined_truth
from pipeline.flows.index.records import (
    FilledPart,
    NumberedPart,
    TrainedIndex,
    load_queries,
    load_truth,
    number_parts,
    store_queries,
    store_truth,
)
from pipeline.flows.index.survey import SurveyResult
from pipeline.flows.index.tasks import Build, with_progress
from pipeline.flows.workers.tasks import PlainTask
from pipeline.store.files.base import Store
from pipeline.store.records.dead import DeadRows
from pipeline.store.records.release_units import VectorUnit
from pipeline.store.records.sealed_json import FileRef, Stored
from pipeline.store.records.write_once import load_or_make, put_by_content
from pipeline.store.releases.manifest import IndexPart, ReleaseManifest

# If a part has this many files of ids, they are merged into one, without the ids of dead rows.
MAX_IDS_FILES = 32


class ExtendedParts(Stored):
    """The parts of an extended index that is not measured yet."""

    parts: tuple[IndexPart, ...]
    delta_parts: int = 0
    """number of parts, from the end, that are the delta"""
    added: FileRef
    """the queries' exact neighbours among the live rows of the added units"""
    first_added: int
    """lowest ordinal of the added units"""
    base_ordinals: int
    tombstones: FileRef | None = None

    @property
    def files(self) -> tuple[FileRef, ...]:
        """Index files of all parts."""
        return tuple(file for part in self.parts for file in part.files)

    @property
    def delta(self) -> tuple[IndexPart, ...]:
        """The parts of the delta."""
        return self.parts[len(self.parts) - self.delta_parts :]


class PartToGrow(NumberedPart):
    """A part of last night's index, and whether rows are added to it."""

    takes_new_rows: bool
    """whether the rows of tonight's units are added to this part"""


def parts_to_grow(parts: Sequence[IndexPart], *, last_takes_new_rows: bool) -> list[PartToGrow]:
    """Return the parts of an index. Only the last one may take new rows."""
    return [
        PartToGrow(**dict(each), takes_new_rows=last_takes_new_rows and each.number == len(parts) - 1)
        for each in number_parts(parts)
    ]


class GrownPart(Stored):
    """A part without its dead rows and with new rows, or the reason why it could not be made."""

    part: IndexPart | None = None
    added: FileRef | None = None
    """the queries' exact neighbours among the added rows; None if the part takes no new rows"""
    unusable: str = ""

    def is_complete(self, store: Store) -> bool:
        """Return whether every file exists with its size; False if there is no part."""
        return self.part is not None and super().is_complete(store)


class AskedQueries(Stored):
    """The queries of tonight: last night's rows, and tonight's texts of users."""

    queries: FileRef
    truth: FileRef | None
    """their exact neighbours last night; None if some of the texts are new"""
    are_same_users: bool
    """whether the texts of users are last night's"""


@dataclass(frozen=True)
class AskUsers(PlainTask[FileRef | None, AskedQueries]):
    """Replace last night's texts of users by tonight's, and keep the exact neighbours of those that remain.

    Two texts are the same if their vectors are.
    """

    store: Store
    previous: ReleaseManifest

    def work(self, users: FileRef | None) -> AskedQueries:
        from pipeline.index.measure.truth import NOT_A_ROW

        store, index = self.store, self.previous.index
        assert index.queries is not None
        assert index.truth is not None
        last = load_queries(store, index.queries)
        tonight = load_queries(store, users).vectors if users else last.vectors[:0]
        last_users = np.flatnonzero(last.of_users)
        if np.array_equal(tonight, last.vectors[last_users]):
            return AskedQueries(queries=index.queries, truth=index.truth, are_same_users=True)
        position = {last.vectors[row].tobytes(): int(row) for row in last_users}
        kept = [position.get(vector.tobytes(), -1) for vector in tonight]
        rows = np.flatnonzero(~last.of_users)
        vectors = np.concatenate([last.vectors[rows], tonight])
        addresses = np.concatenate([last.addresses[rows], np.full(len(tonight), NOT_A_ROW, dtype=np.int64)])
        with store.scratch() as scratch:
            queries, truth = store_queries(store, addresses, vectors, scratch), None
            if -1 not in kept:
                known = load_truth(store, index.truth)[np.concatenate([rows, np.array(kept, dtype=np.int64)])]
                truth = store_truth(store, known, scratch)
        return AskedQueries(queries=queries, truth=truth, are_same_users=False)


@dataclass(frozen=True)
class Extension:
    """Inputs of all tasks that extend one index."""

    build: Build
    previous: ReleaseManifest
    survey: SurveyResult
    units: tuple[VectorUnit, ...]
    """units with live rows, by ordinal"""
    counts: tuple[int, ...]
    """number of live rows of each unit"""
    asked: AskedQueries

    @property
    def trained(self) -> TrainedIndex:
        """Last night's training, and tonight's queries."""
        index = self.previous.index
        assert index.trained is not None
        return TrainedIndex(index=index.trained, queries=self.asked.queries)

    def units_from(self, ordinal: int) -> tuple[VectorUnit, ...]:
        """Return the units whose ordinal is at least `ordinal`."""
        return tuple(unit for unit in self.units if unit.ordinal >= ordinal)

    def live_rows_from(self, ordinal: int) -> int:
        """Count the live rows of the units whose ordinal is at least `ordinal`."""
        return sum(
            count for unit, count in zip(self.units, self.counts, strict=True) if unit.ordinal >= ordinal
        )


@dataclass(frozen=True)
class GrowPart(PlainTask[PartToGrow, GrownPart]):
    """Remove the dead rows from a part of last night's index, and add the rows of new units if it takes them.

    The quantizer is not trained again. Ids of dead rows stay, since no search returns their addresses.
    """

    extension: Extension

    def work(self, item: PartToGrow) -> GrownPart:
        build = self.extension.build
        path = f"{build.work}/grown-{item.number:05d}.json"
        return load_or_make(build.store, path, GrownPart, lambda: self._grow(item))

    def _grow(self, item: PartToGrow) -> GrownPart:
        from pipeline.index.build.build import fill, read_index, remove, write_index
        from pipeline.index.library import faiss_threads
        from pipeline.index.measure.truth import ExactTopK
        from pipeline.index.structure import fingerprint

        extension, previous, source = self.extension, self.extension.previous, self.extension.build.source
        store, ids = source.store, item.part.ids
        try:
            index = read_index(item.part.files[0].local(store), mapped=False)
        except (FileNotFoundError, DataError) as error:
            return GrownPart(unusable=str(error))
        gone = item.own_rows(DeadRows(store, extension.survey.gone))
        new = extension.units_from(previous.next_ordinal) if item.takes_new_rows else ()
        with store.scratch() as scratch, faiss_threads(1):
            removed = remove(index, gone) if len(gone) else 0
            if (removed, fingerprint(index)) != (len(gone), previous.index.settings.get("fingerprint")):
                return GrownPart(
                    unusable=f"its file contains {removed:,} of the {len(gone):,} rows to remove, or is not "
                    f"the file that release {previous.release} describes"
                )
            added = None
            if item.takes_new_rows:
                truth = ExactTopK(load_queries(store, extension.trained.queries), extension.build.affine)
                batches, rows = with_progress(source.batches(new)), sum(source.counts(new))
                filled = fill(index, batches, truth, rows=rows)
                assert filled.neighbours is not None
                added = store_truth(store, filled.neighbours, scratch)
            if new:
                ids = self._ids_with(new, item, scratch)
            write_index(index, scratch / "index.faiss")
            part = IndexPart(
                files=(put_by_content(store, scratch / "index.faiss", "indexes/", index.ntotal),),
                ids=ids,
                next_ordinal=max([item.part.next_ordinal, *(unit.ordinal + 1 for unit in new)]),
            )
            return GrownPart(part=part, added=added)

    def _ids_with(self, new: tuple[VectorUnit, ...], item: PartToGrow, scratch: Path) -> tuple[FileRef, ...]:
        """Return the part's files of ids and a file for the new units. Many files are merged into one."""
        from pipeline.index.files.ids import iter_live_ids, write_ids

        ids = item.part.ids
        source, tables = self.extension.build.source, self.extension.build.source.ids(new)
        if merges := len(ids) >= MAX_IDS_FILES:
            dead = item.own_rows(DeadRows(source.store, source.dead))
            files = [reference.local(source.store) for reference in ids]
            tables = chain(iter_live_ids(files, dead), tables)
        write_ids(scratch / "ids.arrow", tables)
        rows = pa.ipc.open_file(pa.memory_map(str(scratch / "ids.arrow"))).read_all().num_rows
        written = put_by_content(source.store, scratch / "ids.arrow", "ids/", rows)
        return (written,) if merges else (*ids, written)


def with_effort(store: Store, parts: tuple[IndexPart, ...], effort: int) -> tuple[IndexPart, ...]:
    """Return the parts of an index with another search effort in their file.

    Files of several parts, and files with lists on disk, stay as they are: the manifest has their effort.
    """
    if len(parts) != 1 or len(parts[0].files) != 1:
        return parts
    from pipeline.index.build.build import read_index, write_index
    from pipeline.index.measure.search_effort import set_effort

    [part] = parts
    index = read_index(part.files[0].local(store), mapped=False)
    set_effort(index, effort)
    with store.scratch() as scratch:
        write_index(index, scratch / "index.faiss")
        file = put_by_content(store, scratch / "index.faiss", "indexes/", part.rows)
    return (part.model_copy(update={"files": (file,)}),)


@dataclass(frozen=True)
class JoinTruth(PlainTask[tuple[FilledPart, ...], FileRef]):
    """Merge the queries' exact neighbours in the shards of several parts."""

    extension: Extension

    def work(self, parts: tuple[FilledPart, ...]) -> FileRef:
        store = self.extension.build.store
        queries = load_queries(store, self.extension.trained.queries)
        truth = joined_truth(store, [shard for part in parts for shard in part.shards], queries)
        with store.scratch() as scratch:
            return store_truth(store, truth, scratch)
