"""Records of an index: its shards, the built index, its queries and their exact neighbours."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.index.build.index_shape import IndexPlan
from pipeline.index.measure.metrics import IndexMetrics
from pipeline.stats.tensors import pack, unpack
from pipeline.store.files.base import Store
from pipeline.store.records.dead import DeadRows
from pipeline.store.records.release_units import VectorUnit
from pipeline.store.records.sealed_json import FileRef, Stored
from pipeline.store.records.write_once import put_by_content
from pipeline.store.releases.manifest import IndexFiles, IndexPart, PartLayout

if TYPE_CHECKING:
    from pipeline.index.measure.truth import Neighbours, Queries


class Shard(Stored):
    """Units that one worker adds to an index of its own, in this order."""

    number: int
    units: tuple[VectorUnit, ...]


class TrainedIndex(Stored):
    """The empty, trained index that all shards are filled from, and the rows that are used as queries."""

    index: FileRef
    queries: FileRef


class ShardRecord(Stored):
    """The index that one shard fills."""

    index: FileRef
    """file of the index"""
    truth: FileRef
    """exact neighbours of the queries among the shard's rows, and the probes: a few of these rows, which are
    searched for after the merge
    """
    ids: FileRef
    """table of the ids of the shard's rows, by address"""
    rows: int
    """number of the shard's rows"""
    space_id: str


class FilledPart(Stored):
    """The shards that are merged into one part of the index."""

    number: int
    next_ordinal: int
    """the ordinal after the last of its units"""
    shards: tuple[ShardRecord, ...]


class NumberedPart(Stored):
    """A part of an index with its number and the lowest ordinal of its units."""

    number: int
    part: IndexPart
    first_ordinal: int

    def own_rows(self, dead: DeadRows) -> np.ndarray:
        """Return the addresses (n,) of the dead rows that belong to units of this part."""
        return dead.between(self.first_ordinal, self.part.next_ordinal)


def number_parts(parts: Sequence[IndexPart]) -> tuple[NumberedPart, ...]:
    """Return the parts of an index with their numbers and lowest ordinals."""
    first_ordinals = [0, *(part.next_ordinal for part in parts)]
    return tuple(
        NumberedPart(number=number, part=part, first_ordinal=first_ordinals[number])
        for number, part in enumerate(parts)
    )


class ExampleQuery(Stored):
    """A row used as a query, by address, and its nearest other rows as (address, score), best first."""

    query: int
    neighbours: tuple[tuple[int, float], ...]


class BuiltIndex(Stored):
    """A built or extended index with its measurements. Its fields include the fields of `IndexFiles`."""

    kind: str
    factory: str
    dim: int
    parts: int
    files: tuple[FileRef, ...]
    layout: tuple[PartLayout, ...] = ()
    ids: tuple[FileRef, ...]
    rows: int
    """number of live rows: rows in the files that are not tombstones"""
    settings: dict[str, Any]
    """search effort as stored in the file (nprobe or efSearch), nlist, and fingerprint of the training"""
    measured: IndexMetrics
    examples: tuple[ExampleQuery, ...]
    plan: IndexPlan
    trained: FileRef
    trained_on: dict[str, float | int | None]
    """rows, imbalance, recall_at_10 and recall_near_dead after the training, with which later nights are
    compared
    """
    queries: FileRef
    truth: FileRef
    base_ordinals: int
    """ordinals below this one belong to units in the base"""
    tombstones: FileRef | None = None
    """addresses of dead rows that the files still contain"""
    delta_ids: int = 0
    """number of `ids`, from the end, that belong to the delta"""

    def index_files(self) -> IndexFiles:
        """Return the fields that a release's manifest stores."""
        return IndexFiles.model_validate(self.model_dump(include=set(IndexFiles.model_fields)))


def file_fields(parts: Sequence[IndexPart]) -> dict[str, Any]:
    """Return the fields of `BuiltIndex` that name the files of these parts."""
    return {
        "parts": len(parts),
        "files": tuple(file for part in parts for file in part.files),
        "ids": tuple(file for part in parts for file in part.ids),
        "layout": tuple(
            PartLayout(files=len(part.files), ids=len(part.ids), next_ordinal=part.next_ordinal)
            for part in parts
        ),
    }


def store_queries(store: Store, addresses: np.ndarray, vectors: np.ndarray, scratch: Path) -> FileRef:
    """Store queries: addresses (q,) int64 and raw vectors (q, d) float32."""
    file = scratch / "queries.safetensors"
    file.write_bytes(pack({"addresses": addresses, "vectors": vectors}, {}))
    return put_by_content(store, file, "indexes/queries", len(addresses))


def load_queries(store: Store, reference: FileRef) -> "Queries":
    """Load the queries in a file."""
    from pipeline.index.measure.truth import Queries

    tensors, _ = unpack(reference.read(store), "addresses", "vectors")
    return Queries(tensors["addresses"], tensors["vectors"])


def load_truth(store: Store, reference: FileRef) -> "Neighbours":
    """Load the exact neighbours in a file."""
    from pipeline.index.measure.truth import Neighbours

    tensors, _ = unpack(reference.read(store), "addresses", "scores")
    return Neighbours(tensors["addresses"], tensors["scores"])


def store_truth(store: Store, truth: "Neighbours", scratch: Path) -> FileRef:
    """Store exact neighbours: addresses and scores, (q, k) each."""
    file = scratch / "truth.safetensors"
    file.write_bytes(pack({"addresses": truth.addresses, "scores": truth.scores}, {}))
    return put_by_content(store, file, "indexes/truth", len(truth.addresses))
