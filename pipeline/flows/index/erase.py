"""Write the index of a release again without erased rows: its parts, ids, tombstones, queries and truth.

Nothing is deleted. Parts that two releases share are written once. This is a module of its own, because tasks
over an index belong to this folder, below the flow of an erasure.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.config import digest_of
from pipeline.errors import DataError
from pipeline.flows.context import FlowContext, ItemNeeds, map_in_order
from pipeline.flows.index.records import (
    NumberedPart,
    file_fields,
    load_queries,
    load_truth,
    number_parts,
    store_queries,
    store_truth,
)
from pipeline.flows.workers.tasks import PlainTask, Pool
from pipeline.log import announce
from pipeline.store.files.base import Store
from pipeline.store.records.dead import DeadRows, write_address_pieces
from pipeline.store.records.release_units import VectorUnit
from pipeline.store.records.sealed_json import FileRef, Stored
from pipeline.store.records.write_once import load_or_make, put_by_content, store_by_content
from pipeline.store.releases.manifest import IndexFiles, IndexPart, ReleaseManifest
from pipeline.store.rows.address import ordinal_of, to_addresses

_NO_ROWS = np.zeros(0, dtype=np.int64)


def erase_from_index(
    context: FlowContext,
    manifest: ReleaseManifest,
    erased: FileRef,
    work: str,
    units: Sequence[VectorUnit] = (),
) -> ReleaseManifest:
    """Return a release's manifest with an index, ids and tombstones that have none of the erased rows.

    All its other fields stay, also those that name rows, such as `dead`.

    Args:
        erased: file of the addresses of erased rows, as `write_addresses` writes it.
        work: folder for records of finished pieces, which another run of the same erasure uses.
        units: units of other releases with erased rows, on which the index may have been trained.

    Raises:
        DataError: a file is missing or damaged, or the index has no other rows.
    """
    parts = number_parts(manifest.index_parts())
    largest = max(part.bytes for part in manifest.index_parts())
    find = FindTrainingChange(context.store, erased, work, tuple(units))
    training = context.workers.run(find, manifest, Pool(1))
    task = ErasePart(context.store, erased, work, training.change)
    erased_parts = map_in_order(context, task, parts, needs=ItemNeeds(2.0 * largest))
    kept = [made.part for made in erased_parts if made.part is not None]
    if not kept:
        raise DataError(
            f"release {manifest.release}",
            "rows that stay in the index",
            "none",
            "remove the release with manta releases prune, or the root if it has no other",
        )
    small = context.workers.run(EraseFromMeasurements(context.store, erased, work), manifest, Pool(1))
    delta_ids = sum(len(part.ids) for part in kept if part.next_ordinal > manifest.index.base_ordinals)
    fields = {
        **file_fields(kept),
        "delta_ids": delta_ids if manifest.index.delta_ids else 0,
        "queries": small.queries,
        "truth": small.truth,
        "trained": training.trained,
        "settings": manifest.index.settings | training.settings,
    }
    ids = fields.pop("ids")
    index = manifest.index.model_copy(update=fields)
    return manifest.model_copy(update={"index": index, "ids": ids, "tombstones": small.tombstones})


class ErasedPart(Stored):
    """A part of an index without erased rows."""

    part: IndexPart | None
    """None if it had no other rows"""
    rows: int
    """number of erased rows that the index file had"""


@dataclass(frozen=True)
class ErasePart(PlainTask[NumberedPart, ErasedPart]):
    """Write the files of one part again without erased rows; files without such rows stay."""

    store: Store
    erased: FileRef
    """file of the addresses of erased rows"""
    records: str
    """folder of the records of finished parts"""
    change: FileRef | None = None
    """change of the training; None if it stays"""

    def work(self, item: NumberedPart) -> ErasedPart:
        addresses = item.own_rows(DeadRows(self.store, self.erased))
        if not len(addresses) and self.change is None:
            return ErasedPart(part=item.part, rows=0)
        change = self.change.sha256 if self.change else None
        name = digest_of([self.erased.sha256, change, item.model_dump(mode="json")])[:24]
        path = f"{self.records}/part-{name}.json"
        return load_or_make(self.store, path, ErasedPart, lambda: self._erase(item.part, addresses))

    def _erase(self, part: IndexPart, addresses: np.ndarray) -> ErasedPart:
        from pipeline.index.erase.part import erase_from_part
        from pipeline.index.erase.training import TrainingChange
        from pipeline.index.library import faiss_threads

        change = TrainingChange.from_bytes(self.change.read(self.store)) if self.change else None
        with self.store.scratch() as scratch, faiss_threads(1), _files_of(self.store, part) as files:
            count, written = erase_from_part(files, addresses, scratch, change)
            if not written:
                return ErasedPart(part=None, rows=count)
            rows = part.rows - count
            stored = part.files if written == files else tuple(self._put(file, rows) for file in written)
        ids = tuple(file for old in part.ids if (file := self._erase_ids(old, addresses)) is not None)
        return ErasedPart(part=part.model_copy(update={"files": stored, "ids": ids}), rows=count)

    def _put(self, file: Path, rows: int) -> FileRef:
        return put_by_content(self.store, file, "indexes/", rows)

    def _erase_ids(self, reference: FileRef, addresses: np.ndarray) -> FileRef | None:
        """Write a file of ids again without rows; None if it has no other rows."""
        from pipeline.index.files.ids import iter_live_ids, write_ids

        with self.store.scratch() as scratch:
            file, before = scratch / "ids.arrow", reference.local(self.store)
            write_ids(file, iter_live_ids([before], addresses))
            rows = pa.ipc.open_file(pa.memory_map(str(file))).read_all().num_rows
            if rows == reference.rows:
                return reference
            return put_by_content(self.store, file, "ids/", rows) if rows else None


@contextmanager
def _files_of(store: Store, part: IndexPart) -> Iterator[tuple[Path, ...]]:
    """Link the files of a part into one folder, under the names by which they refer to each other."""
    from pipeline.index.files.parts import linked_folder

    named = [(PurePosixPath(file.path).name, file.local(store)) for file in part.files]
    with linked_folder(named) as folder:
        yield tuple(folder / name for name, _ in named)


class ErasedTraining(Stored):
    """The trained index without values that erased rows alone determined."""

    change: FileRef | None
    """the change; None if the training stays"""
    trained: FileRef | None
    settings: dict[str, str] = {}
    """fingerprint of the training, if it changed"""


@dataclass(frozen=True)
class FindTrainingChange(PlainTask[ReleaseManifest, ErasedTraining]):
    """Find the centroids that erased rows alone determined, and replace them in the trained index."""

    store: Store
    erased: FileRef
    records: str
    units: tuple[VectorUnit, ...]
    """units of other releases with erased rows"""

    def work(self, manifest: ReleaseManifest) -> ErasedTraining:
        index = manifest.index
        if index.trained is None or not _is_trained(index.factory):
            return ErasedTraining(change=None, trained=index.trained)
        name = digest_of([self.erased.sha256, index.model_dump(mode="json")])[:24]
        path = f"{self.records}/training-{name}.json"
        trained = index.trained
        return load_or_make(self.store, path, ErasedTraining, lambda: self._find(manifest, trained))

    def _find(self, manifest: ReleaseManifest, trained: FileRef) -> ErasedTraining:
        from pipeline.index.build.build import read_index, write_index
        from pipeline.index.erase.codebook import unused_codewords
        from pipeline.index.erase.training import NearLists, change_of
        from pipeline.index.files.unit_vectors import UnitVectors
        from pipeline.index.library import faiss_threads
        from pipeline.index.structure import fingerprint

        with faiss_threads(1), self.store.scratch() as scratch:
            index = read_index(trained.local(self.store), mapped=False)
            near = NearLists(index).add(self._erased_vectors(manifest))
            own, is_erased = near.own, DeadRows(self.store, self.erased).contains
            unused = unused_codewords(self._parts(manifest), own.codewords, is_erased)
            _announce_kept(manifest, len(own.codewords) - len(unused), len(own.bounds))
            vectors = UnitVectors(self.store, manifest.units)
            change = change_of(near, self._remaining(manifest, near.sums), unused, vectors.take)
            if not change:
                return ErasedTraining(change=None, trained=trained)
            change.apply_in_memory(index)
            write_index(index, scratch / "trained.faiss")
            return ErasedTraining(
                change=store_by_content(
                    self.store, change.to_bytes(), f"{self.records}/training", ".safetensors"
                ),
                trained=put_by_content(self.store, scratch / "trained.faiss", "indexes/trained", 0),
                settings={"fingerprint": fingerprint(index)},
            )

    def _erased_vectors(self, manifest: ReleaseManifest) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the addresses and raw vectors of erased rows, unit by unit."""
        from pipeline.index.files.unit_vectors import UnitVectors

        erased = DeadRows(self.store, self.erased)
        units = {unit.ordinal: unit for unit in (*self.units, *manifest.units)}
        for ordinal in sorted(units):
            rows = np.setdiff1d(erased.rows_of(ordinal), units[ordinal].dropped)
            if len(rows) and units[ordinal].space_id == manifest.space_id:
                addresses = to_addresses(ordinal, rows)
                yield addresses, UnitVectors(self.store, [units[ordinal]]).take(addresses)

    def _remaining(self, manifest: ReleaseManifest, numbers: Iterable[int]) -> dict[int, np.ndarray]:
        """Return the addresses of the rows that stay in lists, by list, in all parts together."""
        from pipeline.index.erase.training import rows_in_lists

        erased, found = DeadRows(self.store, self.erased), {number: [_NO_ROWS] for number in numbers}
        for index in self._parts(manifest) if found else ():
            for number, addresses in rows_in_lists(index, found, erased.contains).items():
                found[number].append(addresses)
        return {number: np.concatenate(pieces) for number, pieces in found.items()}

    def _parts(self, manifest: ReleaseManifest) -> Iterator[Any]:
        """Open the parts of the index, one after the other."""
        from pipeline.index.build.build import read_index

        for part in manifest.index_parts():
            with _files_of(self.store, part) as files:
                yield read_index(files[0], on_disk=len(files) > 1)


def _is_trained(factory: str) -> bool:
    """Return whether an index has lists, codewords or bounds."""
    return re.search("IVF|PQ|SQ", factory) is not None


def _announce_kept(manifest: ReleaseManifest, codewords: int, bounds: int) -> None:
    """Say how many values of the training stay although they are components of erased rows."""
    if codewords or bounds:
        announce(
            f"release {manifest.release}: {codewords:,} codewords and {bounds:,} bounds of its index are "
            "components of vectors of erased rows, and stay, because codes of other rows depend on them; to "
            "train the codes again, run manta nightly with another index.seed, and prune this release"
        )


class ErasedMeasurements(Stored):
    """The small files of an index without erased rows."""

    tombstones: FileRef | None
    queries: FileRef | None
    """None if no query is left"""
    truth: FileRef | None


@dataclass(frozen=True)
class EraseFromMeasurements(PlainTask[ReleaseManifest, ErasedMeasurements]):
    """Write tombstones, queries and their exact neighbours again without erased rows."""

    store: Store
    erased: FileRef
    records: str

    def work(self, manifest: ReleaseManifest) -> ErasedMeasurements:
        index = manifest.index
        files = [self.erased, manifest.tombstones, index.queries, index.truth]
        ordinals = sorted(unit.ordinal for unit in manifest.units)
        name = digest_of([[file.sha256 if file else None for file in files], ordinals])[:24]
        path = f"{self.records}/measurements-{name}.json"
        return load_or_make(self.store, path, ErasedMeasurements, lambda: self._erase(manifest))

    def _erase(self, manifest: ReleaseManifest) -> ErasedMeasurements:
        with self.store.scratch() as scratch:
            tombstones = write_address_pieces(
                self.store, scratch, self._tombstones(manifest), "indexes/tombstones"
            )
        return ErasedMeasurements(tombstones=tombstones, **self._queries(manifest))

    def _tombstones(self, manifest: ReleaseManifest) -> Iterator[np.ndarray]:
        """Yield the addresses of dead rows that the index still has, unit by unit."""
        old, erased = DeadRows(self.store, manifest.tombstones), DeadRows(self.store, self.erased)
        for ordinal in range(manifest.index.base_ordinals if manifest.tombstones else 0):
            yield np.setdiff1d(old.between(ordinal, ordinal + 1), erased.between(ordinal, ordinal + 1))

    def _queries(self, manifest: ReleaseManifest) -> dict[str, FileRef | None]:
        """Return the files of queries and truth, by name.

        Queries whose unit is not in the release are left out, too: nobody knows whose vectors they are.
        """
        from pipeline.index.measure.truth import NOT_A_ROW

        index: IndexFiles = manifest.index
        if index.queries is None or index.truth is None:
            return {"queries": None, "truth": None}
        erased = DeadRows(self.store, self.erased)
        queries, truth = load_queries(self.store, index.queries), load_truth(self.store, index.truth)
        is_known = np.isin(ordinal_of(queries.addresses), [unit.ordinal for unit in manifest.units])
        is_kept = (is_known & ~erased.contains(queries.addresses)) | (queries.addresses == NOT_A_ROW)
        is_erased = erased.contains(truth.addresses)
        if is_kept.all() and not is_erased.any():
            return {"queries": index.queries, "truth": index.truth}
        if not is_kept.any():
            return {"queries": None, "truth": None}
        remaining = queries[is_kept]
        neighbours = truth.masked(~is_erased).compacted()[is_kept]
        with self.store.scratch() as scratch:
            return {
                "queries": store_queries(self.store, remaining.addresses, remaining.vectors, scratch),
                "truth": store_truth(self.store, neighbours, scratch),
            }
