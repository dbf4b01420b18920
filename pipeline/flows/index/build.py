"""Build an index from units of vectors: sample and train, fill shards in parallel, merge, measure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from pipeline.config import digest_of
from pipeline.errors import DataError
from pipeline.flows.index.records import BuiltIndex, Shard, ShardRecord
from pipeline.flows.index.tasks import Build, CountLive, FillShard, Finish, Train
from pipeline.flows.rows import LiveRows, PlacedUnit, space_of
from pipeline.flows.run import Run
from pipeline.flows.workers.tasks import Pool, Task
from pipeline.flows.workers.workers import Workers
from pipeline.index.plan import IndexPlan, plan_index
from pipeline.log import Running, packages
from pipeline.post import Transform
from pipeline.settings import IndexSettings, Job
from pipeline.store.base import Store
from pipeline.store.once import remembered
from pipeline.store.stored import FileRef, Stored

Record = TypeVar("Record", bound=Stored)
Made = TypeVar("Made")


@dataclass(frozen=True)
class IndexInput:
    """Vectors to index.

    Attributes:
        units: units of vectors, in any order.
        dead: rows of the units that are left out.
        transform: applied to every vector and query (default: none).
        dim: dimension of the stored vectors.
        previous_queries: queries of the previous release, if this index replaces its index.
    """

    units: tuple[PlacedUnit, ...]
    dead: FileRef | None
    transform: Transform | None
    dim: int
    previous_queries: FileRef | None = None

    def plan(self, rows: int, settings: IndexSettings) -> IndexPlan:
        """Plan the index for this number of live rows."""
        return plan_index(rows, self.transform.k if self.transform else self.dim, settings)


def build_index(run: Run, vectors: IndexInput) -> BuiltIndex:
    """Build the index over the live rows. Work that an earlier run finished is not repeated.

    Raises:
        SpaceMismatch: the units are of two spaces.
    """
    job, store, units, transform = run.job, run.store, vectors.units, vectors.transform
    source = LiveRows(store, space_of(units), job.corpus.id, vectors.dead)
    filled, rows = live_units(run.workers, source, units)
    plan = vectors.plan(rows, job.index)
    count = shard_count(run, plan, len(filled))
    identity = {
        **index_identity(job, filled, vectors.dead, transform),
        "plan": plan.model_dump(mode="json"),
        "shards": count,
    }
    if vectors.previous_queries:
        identity["asked_before"] = vectors.previous_queries.sha256
    work = f"indexes/work/{digest_of(identity)[:24]}"
    build = Build(source, plan, job.index, job.gates, transform, work, vectors.previous_queries)
    done = f"{work}/built.json"
    if built := BuiltIndex.load_complete(store, done):
        return built
    with run.stages("train") as bar:
        trained = run.workers.run(Train(build), filled, Pool(1))
        bar.stage.note = plan.factory
    records = fill_shards(run, FillShard(build, trained), filled, rows, count)
    finish = Finish(build, trained, max(placed.ordinal for placed in units) + 1)
    with run.stages("merge"):
        built = made_once(store, done, BuiltIndex, lambda: run.workers.run(finish, records, Pool(1)))
    drop_parts(store, records)
    return built


def live_units(
    workers: Workers, source: LiveRows, units: Sequence[PlacedUnit]
) -> tuple[tuple[PlacedUnit, ...], int]:
    """Return the units with live rows, and the number of these rows.

    The units are in the order of their ordinals, so that addresses ascend through index and ids.
    """
    ordered = tuple(sorted(units, key=lambda placed: placed.ordinal))
    counts = tuple(placed.unit.rows for placed in ordered)
    if source.dead:
        counts = workers.run(CountLive(source), ordered, Pool(1))
    return tuple(placed for placed, count in zip(ordered, counts, strict=True) if count), sum(counts)


def shard_count(run: Run, plan: IndexPlan, units: int) -> int:
    """Return the number of parts that so many units are filled into."""
    if not plan.shardable:
        return min(1, units)
    return min(run.job.index.shards or run.workers.index_workers(run.job.cluster, max(1, units)), units)


def index_identity(
    job: Job, units: Sequence[PlacedUnit], dead: FileRef | None, transform: Transform | None
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


def fill_shards(
    run: Run, task: FillShard, units: tuple[PlacedUnit, ...], rows: int, count: int
) -> tuple[ShardRecord, ...]:
    """Fill the live rows of the units into `count` parts of the index.

    Args:
        rows: number of live rows.
    """
    with run.stages("index", rows) as bar:
        records = map_shards(run, task, units, count, bar)
        bar.reach(rows)
    return records


def map_shards(
    run: Run, task: Task[Shard, Made], units: tuple[PlacedUnit, ...], count: int, bar: Running | None = None
) -> tuple[Made, ...]:
    """Apply a task to `count` shards of the units, and return the results in order."""
    shards = contiguous(units, count)
    pool = Pool(run.workers.index_workers(run.job.cluster, len(shards)))
    results = dict(run.workers.map_units(task, shards, pool, bar))
    return tuple(results[number] for number in range(len(shards)))


def made_once(store: Store, path: str, kind: type[Record], make: Callable[[], Record]) -> Record:
    """Load or make a record as `remembered` does, also if a concurrent run removes the parts meanwhile.

    Such a run has finished the same index, so its record is returned.
    """
    try:
        return remembered(store, path, kind, make)
    except (FileNotFoundError, DataError):
        if record := kind.load_complete(store, path):
            return record
        raise


def drop_parts(store: Store, records: Sequence[ShardRecord]) -> None:
    """Delete the parts after the merge, because together they are as large as the index."""
    for record in records:
        store.delete(record.part.path)


def contiguous(units: tuple[PlacedUnit, ...], count: int) -> list[Shard]:
    """Divide units into at most `count` shards of consecutive units with about equal rows.

    No shard is empty. Merged in order, the shards have the order of the units.
    """
    ends = np.cumsum([placed.unit.rows for placed in units])
    cuts = np.searchsorted(ends, ends[-1] * np.arange(1, count) / count, side="left") + 1
    runs = np.split(np.arange(len(units)), np.unique(np.minimum(cuts, len(units))))
    parts = [tuple(units[number] for number in run) for run in runs if len(run)]
    return [Shard(number=number, units=part) for number, part in enumerate(parts)]
