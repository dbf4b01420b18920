"""Records of an index: parts, the built index, and the files of its queries with their exact neighbours."""

from pathlib import Path
from typing import Any

import numpy as np

from pipeline.flows.rows import PlacedUnit
from pipeline.index.measured import Measured
from pipeline.index.plan import IndexPlan
from pipeline.stats.tensors import pack, unpack
from pipeline.store.base import Store
from pipeline.store.manifest import IndexFiles
from pipeline.store.once import put_by_content
from pipeline.store.stored import FileRef, Stored


class Shard(Stored):
    """Units that one worker adds to one part, in order."""

    number: int
    units: tuple[PlacedUnit, ...]


class TrainedIndex(Stored):
    """The empty, trained index that all parts are filled from, and the rows that are used as queries."""

    index: FileRef
    queries: FileRef


class ShardRecord(Stored):
    """A filled part: its file, the ids of its addresses, and the queries' exact neighbours with probes."""

    part: FileRef
    truth: FileRef
    ids: FileRef
    rows: int
    space_id: str


class ExampleQuery(Stored):
    """A row used as a query, and its nearest other rows (address, score), best first."""

    query: int
    neighbours: tuple[tuple[int, float], ...]


class BuiltIndex(Stored):
    """An index that was built or extended, and measured."""

    kind: str
    factory: str
    dim: int
    parts: int
    files: tuple[FileRef, ...]
    ids: tuple[FileRef, ...]
    rows: int
    """number of live rows: those in the files without the tombstones"""
    settings: dict[str, Any]
    """nprobe or efSearch as stored in the file, nlist, fingerprint of the trained part"""
    measured: Measured
    examples: tuple[ExampleQuery, ...]
    plan: IndexPlan
    trained: FileRef
    trained_on: dict[str, float | int | None]
    queries: FileRef
    truth: FileRef
    base_ordinals: int
    tombstones: FileRef | None = None
    """dead rows that the files still hold"""
    delta_ids: int = 0
    """number of `ids`, from the end, that belong to the second part"""

    def index_files(self) -> IndexFiles:
        """Return the index as a release's manifest names it."""
        return IndexFiles.model_validate(self.model_dump(include=set(IndexFiles.model_fields)))


def store_queries(store: Store, addresses: np.ndarray, vectors: np.ndarray, scratch: Path) -> FileRef:
    """Store queries: addresses (q,) int64 and raw vectors (q, d) float32."""
    file = scratch / "queries.safetensors"
    file.write_bytes(pack({"addresses": addresses, "vectors": vectors}, {}))
    return put_by_content(store, file, "indexes/queries", len(addresses))


def load_queries(store: Store, reference: FileRef) -> Any:
    """Load the `Queries` in a file."""
    from pipeline.index.truth import Queries

    tensors, _ = unpack(reference.read(store), "addresses", "vectors")
    return Queries(tensors["addresses"], tensors["vectors"])


def load_truth(store: Store, reference: FileRef) -> Any:
    """Load the `Neighbours` in a file."""
    from pipeline.index.truth import Neighbours

    tensors, _ = unpack(reference.read(store), "addresses", "scores")
    return Neighbours(tensors["addresses"], tensors["scores"])


def store_truth(store: Store, truth: Any, scratch: Path) -> FileRef:
    """Store exact neighbours: addresses and scores, (q, k) each."""
    file = scratch / "truth.safetensors"
    file.write_bytes(pack({"addresses": truth.addresses, "scores": truth.scores}, {}))
    return put_by_content(store, file, "indexes/truth", len(truth.addresses))
