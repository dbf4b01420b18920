"""Embedding units become one searchable index: sample and train once, fill shards in parallel, merge, measure."""

from collections.abc import Sequence

import numpy as np

from pipeline.config import digest_of
from pipeline.errors import DataError
from pipeline.flows.cluster import Cluster
from pipeline.flows.shards import Build, BuiltIndex, FillShard, Finish, Placed, Shard, ShardRecord, Train
from pipeline.flows.units import Pool, map_units, run_task
from pipeline.index.kinds import plan_index
from pipeline.log import Stages, packages
from pipeline.post.whitening import Whitening
from pipeline.settings import Job
from pipeline.store.store import Store
from pipeline.store.units import Manifest


def build_index(
    job: Job, store: Store, vectors: Manifest, ordinals: Sequence[int], transform: Whitening | None, dim: int, cluster: Cluster, stages: Stages
) -> BuiltIndex:
    """The index over the manifest's units. What an earlier run finished of the same index is kept."""
    placed = (Placed(ordinal=ordinal, unit=unit) for ordinal, unit in zip(ordinals, vectors.units, strict=True) if unit.rows)
    units = tuple(sorted(placed, key=lambda each: each.ordinal))        # addresses ascend through index and ids
    plan = plan_index(vectors.rows, transform.k if transform else dim, job.index)
    space_id = units[0].unit.space_id or ""
    made_of = [[placed.ordinal, placed.unit.sha256] for placed in units]
    count = min(job.index.shards or cluster.index_workers(job.cluster, len(units)), len(units)) if plan.shardable else 1
    what = {"units": made_of, "transform": transform.transform_id if transform else None, "plan": plan.model_dump(mode="json"), "shards": count,
            "settings": job.index.model_dump(mode="json"), "recall": job.gates.recall_at_10, "versions": packages("manta-embeddings", "faiss-cpu", "faiss-gpu")}
    build = Build(store, plan, job.index, job.gates, transform, space_id, f"indexes/work/{digest_of(what)[:24]}", job.corpus.id)
    done = f"{build.work}/built.json"
    if (built := BuiltIndex.load(store, done)) and all(store.size(ref.path) == ref.bytes for ref in (*built.files, *built.ids, built.queries)):
        return built
    with stages("train") as bar:
        if not (store.exists(build.trained()) and store.exists(build.queries())):
            run_task(Train(build), units, Pool(1))
        bar.stage.note = plan.factory
    shards = [Shard(number=number, units=part) for number, part in enumerate(_contiguous(units, count))]
    filled: dict[int, ShardRecord] = {}
    with stages("index", vectors.rows) as bar:
        filled |= map_units(FillShard(build), shards, Pool(cluster.index_workers(job.cluster, len(shards))), bar)
        bar.reach(vectors.rows)
    with stages("merge") as bar:
        built = _finished(build, tuple(filled[number] for number in range(len(shards))), done)
    store.write(done, built.to_json())
    for record in filled.values():
        store.delete(record.part.path)                  # as large as the index itself, and in it now
    return built


def _finished(build: Build, shards: tuple[ShardRecord, ...], done: str) -> BuiltIndex:
    try:
        return run_task(Finish(build), shards, Pool(1))
    except (FileNotFoundError, DataError):              # a second run beside this one finished the same index and removed its parts
        if built := BuiltIndex.load(build.store, done):
            return built
        raise


def _contiguous(units: tuple[Placed, ...], count: int) -> list[tuple[Placed, ...]]:
    """`count` runs of consecutive units of about equal rows, none empty: merged in order they are the whole in its order."""
    ends = np.cumsum([placed.unit.rows for placed in units])
    cuts = np.searchsorted(ends, ends[-1] * np.arange(1, count) / count, side="left") + 1
    runs = np.split(np.arange(len(units)), np.unique(np.minimum(cuts, len(units))))
    return [tuple(units[place] for place in run) for run in runs if len(run)]
