"""Tasks that fill an index: count live rows, train, sample queries, fill a shard."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.errors import DataError, Defect
from pipeline.flows.index.records import (
    Shard,
    ShardRecord,
    TrainedIndex,
    load_queries,
    store_queries,
)
from pipeline.flows.rows import LiveRows
from pipeline.flows.workers.tasks import PlainTask, progress
from pipeline.flows.workers.worker_encoder import gpu_assigned
from pipeline.index.build.index_shape import IndexPlan
from pipeline.settings import GateSettings, IndexSettings
from pipeline.stats.tensors import pack
from pipeline.store.files.base import Store
from pipeline.store.records.release_units import VectorUnit
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.records.write_once import load_or_make, put_by_content
from pipeline.transforms.transform import Affine, Transform

# Proportion of dead rows in a sample of queries: half of rebuild_rules.MAX_DEAD_QUERIES, the limit above
# which queries are sampled again.
_DEAD_QUERIES = 0.05


@dataclass(frozen=True)
class Build:
    """Inputs of all tasks that build one index."""

    source: LiveRows
    plan: IndexPlan
    settings: IndexSettings
    gates: GateSettings
    transform: Transform | None
    work: str
    """directory of the shards, named by a digest of everything that determines the index"""
    previous_queries: FileRef | None = None
    """queries of the previous release, if its index is rebuilt"""
    user_queries: FileRef | None = None
    """texts of users, encoded as queries; None without gates.queries"""

    @property
    def store(self) -> Store:
        """The store of the units and of the index."""
        return self.source.store

    @property
    def affine(self) -> Affine | None:
        """The transform as an affine map, which the index applies to vectors and queries."""
        return affine_of(self.transform)


def affine_of(transform: Transform | None) -> Affine | None:
    """Return the transform as an affine map; None without a transform.

    Raises:
        Defect: the transform is not affine; jobs with such a transform are refused earlier.
    """
    if transform is None:
        return None
    if (affine := transform.affine()) is None:
        raise Defect("index", "an affine transform", transform.kind, "refuse it before any work is done")
    return affine


@dataclass(frozen=True)
class CountLive(PlainTask[tuple[VectorUnit, ...], tuple[int, ...]]):
    """Count the live rows of each unit."""

    source: LiveRows

    def work(self, units: tuple[VectorUnit, ...]) -> tuple[int, ...]:
        return self.source.counts(units)


@dataclass(frozen=True)
class Train(PlainTask[tuple[VectorUnit, ...], TrainedIndex]):
    """Sample queries and training rows over all units, and train the empty index, on the worker's GPU if any.

    The first stored result is used by all nights that train the same index, although machines may round
    differently.
    """

    build: Build
    threads: int
    """threads of faiss; its rounding depends on their number"""

    def work(self, units: tuple[VectorUnit, ...]) -> TrainedIndex:
        return load_or_make(
            self.build.store, f"{self.build.work}/trained.json", TrainedIndex, lambda: self._train(units)
        )

    def _train(self, units: tuple[VectorUnit, ...]) -> TrainedIndex:
        from pipeline.index.build.build import train, write_index
        from pipeline.index.gpu import sees_gpus
        from pipeline.index.library import faiss_threads

        build = self.build
        _, sample = build.source.sample(units, max(build.plan.train_rows, 1), "train")
        with faiss_threads(self.threads):
            # a worker sees the GPUs of its node, but may use only those that it was assigned
            on_gpu = gpu_assigned() and sees_gpus()
            index = train(build.plan, build.affine, sample, build.settings.seed, on_gpu=on_gpu)
        with build.store.scratch() as scratch:
            write_index(index, scratch / "trained.faiss")
            reference = put_by_content(build.store, scratch / "trained.faiss", "indexes/trained", 0)
            return TrainedIndex(index=reference, queries=sample_queries(build, units, scratch))


def sample_queries(build: Build, units: tuple[VectorUnit, ...], scratch: Path) -> FileRef:
    """Sample rows over all units as queries, before the texts of users, if there are any.

    One in twenty rows is a dead row, if there are enough dead rows.

    Returns:
        The file of their addresses and raw vectors.
    """
    dead = _sample_dead_queries(build, units, int(_DEAD_QUERIES * build.settings.queries))
    live = build.source.sample(units, build.settings.queries - len(dead[0]), "queries")
    found = [live, dead] if len(dead[0]) else [live]
    if build.user_queries is not None:
        users = load_queries(build.store, build.user_queries)
        found.append((users.addresses, users.vectors))
    addresses, vectors = (np.concatenate(each) for each in zip(*found, strict=True))
    return store_queries(build.store, addresses, vectors, scratch)


def _sample_dead_queries(
    build: Build, units: tuple[VectorUnit, ...], count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return (addresses, raw vectors) of at most `count` dead rows.

    Dead rows are first taken from the queries of the previous release, whose vectors are stored even if their
    unit is gone, then from the units.
    """
    sampled, vectors = build.source.sample(units, count, "queries", dead=True)
    if build.previous_queries is None:
        return sampled, vectors
    try:
        previous = load_queries(build.store, build.previous_queries)
    except (FileNotFoundError, DataError):  # this may be the reason for the rebuild
        return sampled, vectors
    dead = np.flatnonzero(~build.source.holds(units, previous.addresses) & ~previous.of_users)
    # evenly spaced, if there are more than `count`
    dead = dead[np.unique(np.linspace(0, len(dead) - 1, min(count, len(dead))).round().astype(np.int64))]
    others = np.flatnonzero(~np.isin(sampled, previous.addresses[dead]))[: count - len(dead)]
    if not len(others):
        return previous.addresses[dead], previous.vectors[dead]
    addresses = np.concatenate([previous.addresses[dead], sampled[others]])
    return addresses, np.concatenate([previous.vectors[dead], vectors[others]])


@dataclass(frozen=True)
class FillShard(PlainTask[Shard, ShardRecord]):
    """Fill one shard, find the queries' exact neighbours in it, and store the ids of its rows."""

    build: Build
    trained: TrainedIndex
    on_gpu: bool = False
    """whether to find the lists of rows, and the neighbours, on the worker's GPUs"""

    def work(self, shard: Shard) -> ShardRecord:
        stem = f"{self.build.work}/shard-{shard.number:05d}"
        return load_or_make(self.build.store, f"{stem}.json", ShardRecord, lambda: self._fill(shard, stem))

    def _fill(self, shard: Shard, stem: str) -> ShardRecord:
        from pipeline.index.build.build import fill, read_index, write_index
        from pipeline.index.files.ids import write_ids
        from pipeline.index.gpu import check_gpus
        from pipeline.index.library import faiss_threads
        from pipeline.index.measure.truth import ExactTopK

        if self.on_gpu:
            check_gpus()
        source, store = self.build.source, self.build.store
        index = read_index(self.trained.index.local(store), mapped=False)
        queries = load_queries(store, self.trained.queries)
        truth = ExactTopK(queries, self.build.affine, on_gpu=self.on_gpu)
        with store.scratch() as scratch, faiss_threads(1):
            batches = with_progress(source.batches(shard.units))
            filled = fill(index, batches, truth, rows=sum(source.counts(shard.units)), on_gpu=self.on_gpu)
            write_index(index, scratch / "shard.faiss")
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
                index=put_by_content(store, scratch / "shard.faiss", stem, filled.rows),
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
