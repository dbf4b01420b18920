"""What workers do for an index: count live rows, sample and train, fill a shard, merge and measure."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import DataError, Defect
from pipeline.flows.rows import LiveRows, Placed
from pipeline.flows.workers.tasks import progress
from pipeline.index.measured import Measured
from pipeline.index.plan import IndexPlan
from pipeline.post import Affine, Transform
from pipeline.settings import GateSettings, IndexSettings
from pipeline.stats.tensors import pack, unpack
from pipeline.store.base import Store
from pipeline.store.manifest import IndexFiles
from pipeline.store.once import put_by_content, remembered
from pipeline.store.units import FileRef, Stored

_EXAMPLES, _EXAMPLE_ANSWERS = 6, 4
_DEAD_QUERIES = 0.05  # of a sample: half of what may be dead before queries are sampled anew


class Shard(Stored):
    """Units that one worker fills into one part, in order."""

    number: int
    units: tuple[Placed, ...]


class TrainedIndex(Stored):
    """The empty, trained index that all parts are filled from, and the rows asked as queries."""

    index: FileRef
    queries: FileRef


class ShardRecord(Stored):
    """What a filled shard leaves: the part, the queries' exact neighbours in it with rows to look up, and the
    ids of its addresses.
    """

    part: FileRef
    truth: FileRef
    ids: FileRef
    rows: int
    space_id: str


class ExampleQuery(Stored):
    """A row asked as a query, and its nearest others (address, score), best first."""

    query: int
    neighbours: tuple[tuple[int, float], ...]


class BuiltIndex(Stored):
    """A built, or extended, and measured index."""

    kind: str
    factory: str
    dim: int
    parts: int
    files: tuple[FileRef, ...]
    ids: tuple[FileRef, ...]
    rows: int
    """live ones: those in the files without the tombstones"""
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
    """how many of `ids`, the last ones, are of the second part"""

    def index_files(self) -> IndexFiles:
        """The index as a release's manifest names it."""
        return IndexFiles(
            kind=self.kind,
            factory=self.factory,
            dim=self.dim,
            parts=self.parts,
            files=self.files,
            settings=self.settings,
            base_ordinals=self.base_ordinals,
            delta_ids=self.delta_ids,
            trained=self.trained,
            trained_on=self.trained_on,
            queries=self.queries,
            truth=self.truth,
        )


@dataclass(frozen=True)
class Build:
    """What all steps of one build share. work: directory of its parts, named by what is built."""

    source: LiveRows
    plan: IndexPlan
    settings: IndexSettings
    gates: GateSettings
    transform: Transform | None
    work: str
    asked_before: FileRef | None = None
    """queries of the previous release, if the index is built anew in place of its own"""

    @property
    def store(self) -> Store:
        return self.source.store

    @property
    def map(self) -> Affine | None:
        """What the index computes before its search.

        Defect for a transform that is no affine map: no job for one comes this far.
        """
        if self.transform is None:
            return None
        if (affine := self.transform.affine()) is None:
            raise Defect(
                "index", "an affine transform", self.transform.kind, "refuse it before any work is done"
            )
        return affine


@dataclass(frozen=True)
class CountLive:
    """Live rows of each unit."""

    source: LiveRows

    def start(self) -> Callable[[tuple[Placed, ...]], tuple[int, ...]]:
        return self.source.counts


@dataclass(frozen=True)
class Train:
    """Sample queries and training rows over all units, and train the empty index."""

    build: Build

    def start(self) -> Callable[[tuple[Placed, ...]], TrainedIndex]:
        return self._work

    def _work(self, units: tuple[Placed, ...]) -> TrainedIndex:
        # two nights that train the same, on machines that round differently, both continue with one result
        return remembered(
            self.build.store,
            f"{self.build.work}/trained.json",
            TrainedIndex,
            lambda: self._trained(units),
        )

    def _trained(self, units: tuple[Placed, ...]) -> TrainedIndex:
        from pipeline.index.build import train, write_index

        build = self.build
        _, sample = build.source.sample(units, max(build.plan.train_rows, 1), "train")
        index = train(build.plan, build.map, sample, build.settings.seed)
        with build.store.scratch() as scratch:
            write_index(index, scratch / "trained.faiss")
            reference = put_by_content(build.store, scratch / "trained.faiss", "indexes/trained", 0)
            return TrainedIndex(index=reference, queries=sample_queries(build, units, scratch))


def sample_queries(build: Build, units: tuple[Placed, ...], scratch: Path) -> FileRef:
    """Sample rows over all units as queries, one in twenty of them dead as far as there are dead rows.

    Returns:
        The file of their addresses and raw vectors.
    """
    gone, theirs = _dead_queries(build, units, int(_DEAD_QUERIES * build.settings.queries))
    addresses, vectors = build.source.sample(units, build.settings.queries - len(gone), "queries")
    if len(gone):
        addresses, vectors = np.concatenate([addresses, gone]), np.concatenate([vectors, theirs])
    file = scratch / "queries.safetensors"
    file.write_bytes(pack({"addresses": addresses, "vectors": vectors}, {}))
    return put_by_content(build.store, file, "indexes/queries", len(addresses))


def _dead_queries(build: Build, units: tuple[Placed, ...], count: int) -> tuple[np.ndarray, np.ndarray]:
    """(addresses, raw vectors) of at most `count` dead rows: queries of the previous release that are dead
    now, since whole units may be gone with their rows, then others of the units that are left.
    """
    gone, theirs = build.source.sample(units, count, "queries", dead=True)
    if build.asked_before is None:
        return gone, theirs
    try:
        before = load_queries(build.store, build.asked_before)
    except (FileNotFoundError, DataError):  # which may be why the index is built anew
        return gone, theirs
    died = np.flatnonzero(~build.source.holds(units, before.addresses))
    died = died[np.unique(np.linspace(0, len(died) - 1, min(count, len(died))).round().astype(np.int64))]
    others = np.flatnonzero(~np.isin(gone, before.addresses[died]))[: count - len(died)]
    return (
        np.concatenate([before.addresses[died], gone[others]]),
        np.concatenate([before.vectors[died], theirs[others]]) if len(others) else before.vectors[died],
    )


def load_queries(store: Store, reference: FileRef) -> Any:
    """The `Queries` in that file."""
    from pipeline.index.truth import Queries

    tensors, _ = unpack(reference.read(store), "addresses", "vectors")
    return Queries(tensors["addresses"], tensors["vectors"])


@dataclass(frozen=True)
class FillShard:
    """Fill one part, find the queries' exact neighbours in it, and write the ids of its addresses.

    A shard with a record is left as it is.
    """

    build: Build
    trained: TrainedIndex

    def start(self) -> Callable[[Shard], ShardRecord]:
        return self._work

    def _work(self, shard: Shard) -> ShardRecord:
        path = f"{self.build.work}/shard-{shard.number:05d}.json"
        return remembered(self.build.store, path, ShardRecord, lambda: self._filled(shard))

    def _filled(self, shard: Shard) -> ShardRecord:
        from pipeline.index.build import fill, read_index, threads, write_index
        from pipeline.index.ids import write_ids
        from pipeline.index.truth import ExactTopK

        build, store = self.build, self.build.store
        index = read_index(self.trained.index.local(store), mapped=False)
        with store.scratch() as scratch, threads(1):
            filled = fill(
                index,
                counted(build.source.batches(shard.units)),
                ExactTopK(load_queries(store, self.trained.queries), build.map),
            )
            write_index(index, scratch / "part.faiss")
            found = filled.neighbours
            assert found is not None
            tensors = {
                "addresses": found.addresses,
                "scores": found.scores,
                "probe_addresses": filled.probe_addresses,
                "probe_vectors": filled.probe_vectors,
            }
            (scratch / "truth.safetensors").write_bytes(pack(tensors, {}))
            write_ids(scratch / "ids.arrow", build.source.ids(shard.units))
            stem = f"{build.work}/shard-{shard.number:05d}"
            part = put_by_content(store, scratch / "part.faiss", stem, filled.rows)
            truth = put_by_content(store, scratch / "truth.safetensors", stem, len(found.addresses))
            ids = put_by_content(store, scratch / "ids.arrow", "ids/", filled.rows)
        return ShardRecord(part=part, truth=truth, ids=ids, rows=filled.rows, space_id=build.source.space_id)


def counted(batches: Iterator[tuple[np.ndarray, np.ndarray]]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The batches as they come, their rows told to the driver."""
    done = 0
    for addresses, vectors in batches:
        yield addresses, vectors
        done += len(addresses)
        progress(done)
    progress(done, last=True)


@dataclass(frozen=True)
class Finish:
    """Merge the parts in order, choose the search effort, and measure."""

    build: Build
    trained: TrainedIndex
    base_ordinals: int

    def start(self) -> Callable[[tuple[ShardRecord, ...]], BuiltIndex]:
        return self._work

    def _work(self, shards: tuple[ShardRecord, ...]) -> BuiltIndex:
        from pipeline.index.build import write_index
        from pipeline.index.measure import measure
        from pipeline.index.merge import merge, merge_on_disk

        build, store = self.build, self.build.store
        queries = load_queries(store, self.trained.queries)
        with store.scratch() as scratch:
            parts, truth = filled_parts(store, shards, queries)
            index, lists = merge_on_disk(parts, scratch) if build.plan.on_disk else (merge(parts), None)
            found = measure(index, queries, truth, build.settings, build.gates.wanted_recall)
            shown = examples(index, queries)
            write_index(index, scratch / "index.faiss")
            written = (scratch / "index.faiss", lists) if lists else (scratch / "index.faiss",)
            refs = tuple(put_by_content(store, file, "indexes/", found.rows) for file in written)
            kept = keep_truth(store, truth, scratch)
        measured = found.model_copy(update={"file_bytes": sum(file.bytes for file in refs)})
        return BuiltIndex(
            kind=build.plan.kind,
            factory=build.plan.factory,
            dim=build.plan.dim,
            parts=1,
            files=refs,
            ids=tuple(shard.ids for shard in shards),
            rows=measured.rows,
            settings=settings_of(measured),
            measured=measured,
            examples=shown,
            plan=build.plan,
            trained=self.trained.index,
            queries=self.trained.queries,
            truth=kept,
            trained_on=_trained_on(measured),
            base_ordinals=self.base_ordinals,
        )


def _trained_on(measured: Measured) -> dict[str, float | int | None]:
    """What later nights are compared with."""
    near = measured.recall_near_dead
    return {
        "rows": measured.rows,
        "imbalance": measured.imbalance,
        "recall_at_10": measured.recall["10"].value,
        **({"recall_near_dead": near.value} if near else {}),
    }


def settings_of(measured: Measured) -> dict[str, Any]:
    """What a reader of the files wants to know of what was measured."""
    return measured.model_dump(include={"effort_name", "effort", "nlist", "fingerprint"})


def filled_parts(store: Store, shards: tuple[ShardRecord, ...], queries: Any) -> tuple[list[Any], Any]:
    """The shards' parts, ready to be merged, and the queries' exact neighbours over all of them
    (`Neighbours`).
    """
    from pipeline.index.merge import Part
    from pipeline.index.truth import ExactTopK, Neighbours

    truth, parts = ExactTopK(queries).none(), []
    for shard in shards:
        content = shard.truth.read(store)
        found = unpack(content, "addresses", "scores", "probe_addresses", "probe_vectors")[0]
        truth = ExactTopK(queries).merge(truth, Neighbours(found["addresses"], found["scores"]))
        file = shard.part.local(store)
        parts.append(Part(file, shard.rows, found["probe_addresses"], found["probe_vectors"], shard.space_id))
    return parts, truth


def keep_truth(store: Store, truth: Any, scratch: Path) -> FileRef:
    """Exact neighbours as a file: addresses and scores, (q, k) each."""
    file = scratch / "truth.safetensors"
    file.write_bytes(pack({"addresses": truth.addresses, "scores": truth.scores}, {}))
    return put_by_content(store, file, "indexes/truth", len(truth.addresses))


def load_truth(store: Store, reference: FileRef) -> Any:
    """The `Neighbours` in that file."""
    from pipeline.index.truth import Neighbours

    tensors, _ = unpack(reference.read(store), "addresses", "scores")
    return Neighbours(tensors["addresses"], tensors["scores"])


def examples(index: Any, queries: Any) -> tuple[ExampleQuery, ...]:
    """A few queries with what the index answers, their own address left out."""
    asked = queries[:: max(1, len(queries) // _EXAMPLES)][:_EXAMPLES]
    scores, found = index.search(asked.vectors, min(_EXAMPLE_ANSWERS + 1, index.ntotal))
    answers = []
    for query, addresses, values in zip(
        asked.addresses.tolist(), found.tolist(), scores.tolist(), strict=True
    ):
        others = [
            (address, score)
            for address, score in zip(addresses, values, strict=True)
            if address not in (query, -1)
        ]
        answers.append(ExampleQuery(query=query, neighbours=tuple(others[:_EXAMPLE_ANSWERS])))
    return tuple(answers)
