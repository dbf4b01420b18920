"""The work of workers to build an index: count live rows, train, fill a shard, merge and measure."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import DataError, Defect
from pipeline.flows.index.records import (
    BuiltIndex,
    ExampleQuery,
    Shard,
    ShardRecord,
    TrainedIndex,
    load_queries,
    store_queries,
    store_truth,
)
from pipeline.flows.rows import LiveRows, PlacedUnit
from pipeline.flows.workers.tasks import PlainTask, progress
from pipeline.index.measured import Measured
from pipeline.index.plan import IndexPlan
from pipeline.post import Affine, Transform
from pipeline.settings import GateSettings, IndexSettings
from pipeline.stats.tensors import pack, unpack
from pipeline.store.base import Store
from pipeline.store.once import put_by_content, remembered
from pipeline.store.stored import FileRef

_EXAMPLES, _EXAMPLE_ANSWERS = 6, 4
_DEAD_QUERIES = 0.05  # of a sample: half of the dead ones that are allowed before queries are sampled again


@dataclass(frozen=True)
class Build:
    """Values that all steps of one build share."""

    source: LiveRows
    plan: IndexPlan
    settings: IndexSettings
    gates: GateSettings
    transform: Transform | None
    work: str
    """directory of its parts, named by a digest of everything that determines the index"""
    previous_queries: FileRef | None = None
    """queries of the previous release, if its index is rebuilt"""

    @property
    def store(self) -> Store:
        """The store of the units and of the index."""
        return self.source.store

    @property
    def map(self) -> Affine | None:
        """The affine map that the index applies before its search.

        Raises:
            Defect: the transform is not affine. The job for such a transform is refused before any work.
        """
        if self.transform is None:
            return None
        if (affine := self.transform.affine()) is None:
            raise Defect(
                "index", "an affine transform", self.transform.kind, "refuse it before any work is done"
            )
        return affine


@dataclass(frozen=True)
class CountLive(PlainTask[tuple[PlacedUnit, ...], tuple[int, ...]]):
    """Count the live rows of each unit."""

    source: LiveRows

    def work(self, units: tuple[PlacedUnit, ...]) -> tuple[int, ...]:
        return self.source.counts(units)


@dataclass(frozen=True)
class Train(PlainTask[tuple[PlacedUnit, ...], TrainedIndex]):
    """Sample queries and training rows over all units, and train the empty index.

    Two nights that train the same index, on machines that round differently, both continue with one result.
    """

    build: Build

    def work(self, units: tuple[PlacedUnit, ...]) -> TrainedIndex:
        return remembered(
            self.build.store, f"{self.build.work}/trained.json", TrainedIndex, lambda: self._train(units)
        )

    def _train(self, units: tuple[PlacedUnit, ...]) -> TrainedIndex:
        from pipeline.index.build import train, write_index

        build = self.build
        _, sample = build.source.sample(units, max(build.plan.train_rows, 1), "train")
        index = train(build.plan, build.map, sample, build.settings.seed)
        with build.store.scratch() as scratch:
            write_index(index, scratch / "trained.faiss")
            reference = put_by_content(build.store, scratch / "trained.faiss", "indexes/trained", 0)
            return TrainedIndex(index=reference, queries=sample_queries(build, units, scratch))


def sample_queries(build: Build, units: tuple[PlacedUnit, ...], scratch: Path) -> FileRef:
    """Sample rows over all units as queries. One in twenty is a dead row, if there are as many.

    Returns:
        The file of their addresses and raw vectors.
    """
    dead = _dead_queries(build, units, int(_DEAD_QUERIES * build.settings.queries))
    live = build.source.sample(units, build.settings.queries - len(dead[0]), "queries")
    addresses, vectors = live
    if len(dead[0]):
        addresses, vectors = (np.concatenate(both) for both in zip(live, dead, strict=True))
    return store_queries(build.store, addresses, vectors, scratch)


def _dead_queries(build: Build, units: tuple[PlacedUnit, ...], count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (addresses, raw vectors) of at most `count` dead rows.

    Queries of the previous release that have died come first, because whole units may be gone with their
    rows; the others are dead rows of the remaining units.
    """
    gone, vectors = build.source.sample(units, count, "queries", dead=True)
    if build.previous_queries is None:
        return gone, vectors
    try:
        before = load_queries(build.store, build.previous_queries)
    except (FileNotFoundError, DataError):  # which may be why the index is rebuilt
        return gone, vectors
    died = np.flatnonzero(~build.source.holds(units, before.addresses))
    died = died[np.unique(np.linspace(0, len(died) - 1, min(count, len(died))).round().astype(np.int64))]
    others = np.flatnonzero(~np.isin(gone, before.addresses[died]))[: count - len(died)]
    if not len(others):
        return before.addresses[died], before.vectors[died]
    addresses = np.concatenate([before.addresses[died], gone[others]])
    return addresses, np.concatenate([before.vectors[died], vectors[others]])


@dataclass(frozen=True)
class FillShard(PlainTask[Shard, ShardRecord]):
    """Fill one part, find the queries' exact neighbours in it, and write the ids of its addresses."""

    build: Build
    trained: TrainedIndex

    def work(self, shard: Shard) -> ShardRecord:
        stem = f"{self.build.work}/shard-{shard.number:05d}"
        return remembered(self.build.store, f"{stem}.json", ShardRecord, lambda: self._fill(shard, stem))

    def _fill(self, shard: Shard, stem: str) -> ShardRecord:
        from pipeline.index.build import fill, read_index, threads, write_index
        from pipeline.index.ids import write_ids
        from pipeline.index.truth import ExactTopK

        source, store = self.build.source, self.build.store
        index = read_index(self.trained.index.local(store), mapped=False)
        truth = ExactTopK(load_queries(store, self.trained.queries), self.build.map)
        with store.scratch() as scratch, threads(1):
            filled = fill(index, with_progress(source.batches(shard.units)), truth)
            write_index(index, scratch / "part.faiss")
            assert filled.neighbours is not None
            tensors = {
                "addresses": filled.neighbours.addresses,
                "scores": filled.neighbours.scores,
                "probe_addresses": filled.probe_addresses,
                "probe_vectors": filled.probe_vectors,
            }
            (scratch / "truth.safetensors").write_bytes(pack(tensors, {}))
            write_ids(scratch / "ids.arrow", source.ids(shard.units))
            return ShardRecord(
                part=put_by_content(store, scratch / "part.faiss", stem, filled.rows),
                truth=put_by_content(store, scratch / "truth.safetensors", stem, len(truth.queries)),
                ids=put_by_content(store, scratch / "ids.arrow", "ids/", filled.rows),
                rows=filled.rows,
                space_id=source.space_id,
            )


def with_progress(
    batches: Iterator[tuple[np.ndarray, np.ndarray]],
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the batches and report their rows to the driver."""
    done = 0
    for addresses, vectors in batches:
        yield addresses, vectors
        done += len(addresses)
        progress(done)
    progress(done, last=True)


@dataclass(frozen=True)
class Finish(PlainTask[tuple[ShardRecord, ...], BuiltIndex]):
    """Merge the parts in order, choose the search effort, and measure."""

    build: Build
    trained: TrainedIndex
    base_ordinals: int

    def work(self, shards: tuple[ShardRecord, ...]) -> BuiltIndex:
        from pipeline.index.build import write_index
        from pipeline.index.measure import measure
        from pipeline.index.merge import merge, merge_on_disk

        build, store, plan = self.build, self.build.store, self.build.plan
        queries = load_queries(store, self.trained.queries)
        with store.scratch() as scratch:
            parts, truth = filled_parts(store, shards, queries)
            index, lists = merge_on_disk(parts, scratch) if plan.on_disk else (merge(parts), None)
            found = measure(index, queries, truth, build.settings, build.gates.wanted_recall)
            shown = examples(index, queries)
            write_index(index, scratch / "index.faiss")
            written = (scratch / "index.faiss", lists) if lists else (scratch / "index.faiss",)
            files = tuple(put_by_content(store, file, "indexes/", found.rows) for file in written)
            kept = store_truth(store, truth, scratch)
        measured = found.model_copy(update={"file_bytes": sum(file.bytes for file in files)})
        near = {"recall_near_dead": found.recall_near_dead.value} if found.recall_near_dead else {}
        return BuiltIndex(
            kind=plan.kind,
            factory=plan.factory,
            dim=plan.dim,
            parts=1,
            files=files,
            ids=tuple(shard.ids for shard in shards),
            rows=found.rows,
            settings=settings_of(measured),
            measured=measured,
            examples=shown,
            plan=plan,
            trained=self.trained.index,
            queries=self.trained.queries,
            truth=kept,
            trained_on={
                "rows": found.rows,
                "imbalance": found.imbalance,
                "recall_at_10": found.recall["10"].value,
                **near,
            },
            base_ordinals=self.base_ordinals,
        )


def settings_of(measured: Measured) -> dict[str, Any]:
    """Return the measured values that a reader of the index files needs."""
    return measured.model_dump(include={"effort_name", "effort", "nlist", "fingerprint"})


def filled_parts(store: Store, shards: tuple[ShardRecord, ...], queries: Any) -> tuple[list[Any], Any]:
    """Return the shards' parts to be merged, and the queries' exact `Neighbours` over all of them."""
    from pipeline.index.merge import Part
    from pipeline.index.truth import ExactTopK, Neighbours

    fold, parts = ExactTopK(queries), []
    truth = fold.none()
    for shard in shards:
        found, _ = unpack(shard.truth.read(store), "addresses", "scores", "probe_addresses", "probe_vectors")
        truth = fold.merge(truth, Neighbours(found["addresses"], found["scores"]))
        parts.append(
            Part(
                shard.part.local(store),
                shard.rows,
                found["probe_addresses"],
                found["probe_vectors"],
                shard.space_id,
            )
        )
    return parts, truth


def examples(index: Any, queries: Any) -> tuple[ExampleQuery, ...]:
    """Return a few queries with the answers of the index, without their own addresses."""
    asked = queries[:: max(1, len(queries) // _EXAMPLES)][:_EXAMPLES]
    scores, found = index.search(asked.vectors, min(_EXAMPLE_ANSWERS + 1, index.ntotal))
    shown = []
    for query, *answers in zip(asked.addresses.tolist(), found.tolist(), scores.tolist(), strict=True):
        others = [pair for pair in zip(*answers, strict=True) if pair[0] not in (query, -1)]
        shown.append(ExampleQuery(query=query, neighbours=tuple(others[:_EXAMPLE_ANSWERS])))
    return tuple(shown)
