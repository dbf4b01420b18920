"""Embedding units become one searchable index: sample and train once, fill shards in parallel, merge, measure."""

from collections.abc import Sequence

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
from pipeline.flows.workers.cluster import Cluster
from pipeline.flows.workers.pool import Pool, map_units, run_task
from pipeline.index.kinds import plan_index
from pipeline.log import Stages, packages
from pipeline.post import Transform
from pipeline.settings import Job
from pipeline.store.base import Store
from pipeline.store.units import FileRef


def build_index(
    job: Job,
    store: Store,
    units: Sequence[Placed],
    dead: FileRef | None,
    transform: Transform | None,
    dim: int,
    cluster: Cluster,
    stages: Stages,
    asked_before: FileRef | None = None,
) -> BuiltIndex:
    """The index over the live rows of all units. What an earlier run finished of the same index is kept.

    Args:
        dead: rows that are left out.
        asked_before: queries of the previous release, if this index takes the place of its own.

    Raises:
        SpaceMismatch: units of two spaces.
    """
    source = LiveRows(store, space_of(units), job.corpus.id, dead)
    filled, rows = live_units(source, units)
    plan = plan_index(rows, transform.k if transform else dim, job.index)
    count = (
        min(job.index.shards or cluster.index_workers(job.cluster, len(filled)), len(filled))
        if plan.shardable
        else 1
    )
    what = {**made_of(job, filled, dead, transform), "plan": plan.model_dump(mode="json"), "shards": count}
    if asked_before:
        what["asked_before"] = asked_before.sha256
    work = f"indexes/work/{digest_of(what)[:24]}"
    build = Build(source, plan, job.index, job.gates, transform, work, asked_before)
    done = f"{build.work}/built.json"
    if (built := BuiltIndex.left(store, done)) and built.is_whole(store):
        return built
    with stages("train") as bar:
        trained = run_task(Train(build), filled, Pool(1))
        bar.stage.note = plan.factory
    records = fill_shards(
        FillShard(build, trained), filled, count, rows, cluster.index_workers(job.cluster, count), stages
    )
    with stages("merge"):
        built = _finished(Finish(build, trained, max(placed.ordinal for placed in units) + 1), records, done)
    store.write(done, built.to_json())
    drop_parts(store, records)
    return built


def live_units(source: LiveRows, units: Sequence[Placed]) -> tuple[tuple[Placed, ...], int]:
    """The units with live rows, by ordinal (so that addresses ascend through index and ids), and how many live rows they have."""
    ordered = tuple(sorted(units, key=lambda placed: placed.ordinal))
    counts = (
        run_task(CountLive(source), ordered, Pool(1))
        if source.dead
        else tuple(placed.unit.rows for placed in ordered)
    )
    return tuple(placed for placed, count in zip(ordered, counts, strict=True) if count), sum(counts)


def made_of(
    job: Job, units: Sequence[Placed], dead: FileRef | None, transform: Transform | None
) -> dict[str, object]:
    """All that decides how an index over these rows turns out."""
    return {
        "units": [[placed.ordinal, placed.unit.sha256] for placed in units],
        "dead": dead.sha256 if dead else None,
        "transform": transform.transform_id if transform else None,
        "settings": job.index.model_dump(mode="json"),
        "recall": job.gates.recall_at_10,
        "versions": packages("manta-embeddings", "faiss-cpu", "faiss-gpu"),
    }


def fill_shards(
    task: FillShard, units: tuple[Placed, ...], count: int, rows: int, workers: int, stages: Stages
) -> tuple[ShardRecord, ...]:
    """The units' live rows in `count` parts, filled by a pool of workers."""
    shards = [Shard(number=number, units=part) for number, part in enumerate(contiguous(units, count))]
    with stages("index", rows) as bar:
        filled = dict(map_units(task, shards, Pool(min(workers, len(shards))), bar))
        bar.reach(rows)
    return tuple(filled[number] for number in range(len(shards)))


def drop_parts(store: Store, records: Sequence[ShardRecord]) -> None:
    """Parts are as large as the index itself, and in it now."""
    for record in records:
        store.delete(record.part.path)


def _finished(task: Finish, shards: tuple[ShardRecord, ...], done: str) -> BuiltIndex:
    try:
        return run_task(task, shards, Pool(1))
    except (
        FileNotFoundError,
        DataError,
    ):  # a second run beside this one finished the same index and removed its parts
        if built := BuiltIndex.left(task.build.store, done):
            return built
        raise


def contiguous(units: tuple[Placed, ...], count: int) -> list[tuple[Placed, ...]]:
    """`count` runs of consecutive units of about equal rows, none empty: merged in order they are the whole in its order."""
    ends = np.cumsum([placed.unit.rows for placed in units])
    cuts = np.searchsorted(ends, ends[-1] * np.arange(1, count) / count, side="left") + 1
    runs = np.split(np.arange(len(units)), np.unique(np.minimum(cuts, len(units))))
    return [tuple(units[place] for place in run) for run in runs if len(run)]
