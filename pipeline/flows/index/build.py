"""Embedding units become one searchable index: sample and train once, fill shards in parallel, merge,
measure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pipeline.config import digest_of
from pipeline.errors import DataError
from pipeline.flows.index.tasks import (
    Build,
    BuiltIndex,
    CountLive,
    FillShard,
    Finish,
    Shard,
    ShardRecord,
    Train,
)
from pipeline.flows.rows import LiveRows, Placed, space_of
from pipeline.flows.run import Run
from pipeline.flows.workers.tasks import Pool
from pipeline.flows.workers.workers import Workers
from pipeline.index.plan import IndexPlan, plan_index
from pipeline.log import packages
from pipeline.post import Transform
from pipeline.settings import IndexSettings, Job
from pipeline.store.base import Store
from pipeline.store.once import create_record
from pipeline.store.units import FileRef


@dataclass(frozen=True)
class IndexInput:
    """Vectors to index.

    Attributes:
        units: of vectors, in any order.
        dead: rows of the units that are left out.
        transform: applied to every vector and query (default: none).
        dim: of the stored vectors.
        asked_before: queries of the previous release, if the index takes the place of its own.
    """

    units: tuple[Placed, ...]
    dead: FileRef | None
    transform: Transform | None
    dim: int
    asked_before: FileRef | None = None

    def plan(self, rows: int, settings: IndexSettings) -> IndexPlan:
        """Return the index for so many live rows."""
        return plan_index(rows, self.transform.k if self.transform else self.dim, settings)


def build_index(run: Run, vectors: IndexInput) -> BuiltIndex:
    """Build the index over the live rows; whatever an earlier run finished of the same index is kept.

    Raises:
        SpaceMismatch: the units are of two spaces.
    """
    job, store, units, transform = run.job, run.store, vectors.units, vectors.transform
    source = LiveRows(store, space_of(units), job.corpus.id, vectors.dead)
    filled, rows = live_units(run.workers, source, units)
    plan = vectors.plan(rows, job.index)
    count = (
        min(job.index.shards or run.workers.index_workers(job.cluster, len(filled)), len(filled))
        if plan.shardable
        else 1
    )
    what = {
        **index_identity(job, filled, vectors.dead, transform),
        "plan": plan.model_dump(mode="json"),
        "shards": count,
    }
    if vectors.asked_before:
        what["asked_before"] = vectors.asked_before.sha256
    work = f"indexes/work/{digest_of(what)[:24]}"
    build = Build(source, plan, job.index, job.gates, transform, work, vectors.asked_before)
    done = f"{build.work}/built.json"
    if built := BuiltIndex.load_complete(store, done):
        return built
    with run.stages("train") as bar:
        trained = run.workers.run(Train(build), filled, Pool(1))
        bar.stage.note = plan.factory
    size = run.workers.index_workers(job.cluster, count)
    records = fill_shards(run, FillShard(build, trained), Filling(filled, rows, count, size))
    with run.stages("merge"):
        finish = Finish(build, trained, max(placed.ordinal for placed in units) + 1)
        built = _finished(run.workers, finish, records, done)
    create_record(store, done, built)
    drop_parts(store, records)
    return built


def live_units(workers: Workers, source: LiveRows, units: Sequence[Placed]) -> tuple[tuple[Placed, ...], int]:
    """Return the units with live rows, and the number of these rows.

    The units are in the order of their ordinals, so that addresses ascend through index and ids.
    """
    ordered = tuple(sorted(units, key=lambda placed: placed.ordinal))
    counts = (
        workers.run(CountLive(source), ordered, Pool(1))
        if source.dead
        else tuple(placed.unit.rows for placed in ordered)
    )
    return tuple(placed for placed, count in zip(ordered, counts, strict=True) if count), sum(counts)


def index_identity(
    job: Job, units: Sequence[Placed], dead: FileRef | None, transform: Transform | None
) -> dict[str, object]:
    """Return everything that determines the index over these rows."""
    return {
        "units": [[placed.ordinal, placed.unit.sha256] for placed in units],
        "dead": dead.sha256 if dead else None,
        "transform": transform.transform_id if transform else None,
        "settings": job.index.model_dump(mode="json"),
        "recall": job.gates.recall_at_10,
        "versions": packages("manta-embeddings", "faiss-cpu", "faiss-gpu"),
    }


class Filling(NamedTuple):
    """Units to fill into `shards` parts by `workers` workers. rows: live ones of the units."""

    units: tuple[Placed, ...]
    rows: int
    shards: int
    workers: int


def fill_shards(run: Run, task: FillShard, filling: Filling) -> tuple[ShardRecord, ...]:
    """Fill the live rows of the units into parts of the index."""
    parts = contiguous(filling.units, filling.shards)
    shards = [Shard(number=number, units=part) for number, part in enumerate(parts)]
    with run.stages("index", filling.rows) as bar:
        pool = Pool(min(filling.workers, len(shards)))
        filled = dict(run.workers.map_units(task, shards, pool, bar))
        bar.reach(filling.rows)
    return tuple(filled[number] for number in range(len(shards)))


def drop_parts(store: Store, records: Sequence[ShardRecord]) -> None:
    """Parts are as large as the index itself, and in it now."""
    for record in records:
        store.delete(record.part.path)


def _finished(workers: Workers, task: Finish, shards: tuple[ShardRecord, ...], done: str) -> BuiltIndex:
    try:
        return workers.run(task, shards, Pool(1))
    except (FileNotFoundError, DataError):
        # a second run beside this one finished the same index and removed its parts
        if built := BuiltIndex.load_complete(task.build.store, done):
            return built
        raise


def contiguous(units: tuple[Placed, ...], count: int) -> list[tuple[Placed, ...]]:
    """`count` runs of consecutive units of about equal rows, none empty: merged in order they are the whole
    in its order.
    """
    ends = np.cumsum([placed.unit.rows for placed in units])
    cuts = np.searchsorted(ends, ends[-1] * np.arange(1, count) / count, side="left") + 1
    runs = np.split(np.arange(len(units)), np.unique(np.minimum(cuts, len(units))))
    return [tuple(units[place] for place in run) for run in runs if len(run)]
