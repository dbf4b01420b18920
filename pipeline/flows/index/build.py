"""Build an index over units of vectors: sample and train, fill shards in parallel, merge them and measure.

An index has one part, which is one file, or several parts of at most index.part_gib. A part is merged from
shards, which are filled in parallel.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count, islice

import numpy as np

from pipeline.config import digest_of
from pipeline.flows.context import FlowContext, ItemNeeds, map_in_order
from pipeline.flows.index.finish_tasks import Finish, MergeShards, finish_parts
from pipeline.flows.index.records import BuiltIndex, FilledPart, Shard, TrainedIndex
from pipeline.flows.index.tasks import Build, CountLive, FillShard, Train, affine_of
from pipeline.flows.rows import LiveRows, space_of
from pipeline.flows.workers.interface import Workers
from pipeline.flows.workers.tasks import PlainTask, Pool
from pipeline.index.build.index_shape import GIB, IndexPlan, plan_index, variants_to_measure
from pipeline.index.measure.kind_recall import CodeRecall, KindRecalls, KindVariant
from pipeline.log import packages
from pipeline.settings import IndexSettings, Job
from pipeline.stats.tensors import pack, unpack
from pipeline.store.files.base import Store, in_threads
from pipeline.store.records.release_units import VectorUnit
from pipeline.store.records.sealed_json import FileRef, Stored
from pipeline.store.records.write_once import load_or_make, load_or_make_racing, put_by_content
from pipeline.transforms.transform import Affine, Transform

# Training rows x lists x dimensions up to which one thread is enough: k-means takes about 20 times as many
# operations, half a minute of one core.
_SMALL_TRAINING = 1 << 36


# A shard has at least this many rows for each list, because every shard has a copy of the lists' centroids.
_SHARD_ROWS_PER_LIST = 32
_SHARD_VALUES = 1 << 24  # least number of vector components in a shard


@dataclass(frozen=True)
class IndexInput:
    """Vectors to index."""

    units: tuple[VectorUnit, ...]
    """units of vectors, in any order"""
    dead: FileRef | None
    """file of the dead rows, which are left out; None if there are none"""
    transform: Transform | None
    """transform that the index applies to every vector and query; None for raw vectors"""
    dim: int
    """dimension of the stored vectors"""
    previous_queries: FileRef | None = None
    """queries of the previous release, if this index replaces a release's index"""
    user_queries: FileRef | None = None
    """texts of users, encoded as queries; None without gates.queries"""

    @property
    def indexed_dim(self) -> int:
        """Dimension of the vectors after the transform."""
        return self.transform.k if self.transform else self.dim


def build_index(context: FlowContext, vectors: IndexInput) -> BuiltIndex:
    """Build the index over the live rows. Work that an earlier run finished is not repeated.

    Raises:
        SpaceMismatch: the units are of two spaces.
    """
    job, store, units, transform = context.job, context.store, vectors.units, vectors.transform
    source = LiveRows(store, space_of(units), job.corpus.id, vectors.dead)
    indexed, rows = live_units(context.workers, source, units)
    plan = _measured_plan(context, vectors, source, indexed, rows)
    identity = {
        **index_identity(job, replace(vectors, units=indexed)),
        "plan": plan.model_dump(mode="json"),
        "shards": shard_count(job.index, plan, len(indexed), rows),
    }
    if vectors.previous_queries:
        identity["asked_before"] = vectors.previous_queries.sha256
    work = f"indexes/work/{digest_of(identity)[:24]}"
    asked = vectors.previous_queries, vectors.user_queries
    build = Build(source, plan, job.index, job.gates, transform, work, *asked)
    record_path = f"{work}/built.json"
    if built := BuiltIndex.load_complete(store, record_path):
        return built
    with context.stages("train") as bar:
        pool = _training_pool(context, plan)
        trained = context.workers.run(Train(build, int(pool.cpus)), indexed, pool)
        bar.stage.note = plan.factory
    parts = fill_parts(context, FillShard(build, trained), indexed, rows)
    base_ordinals = max(unit.ordinal for unit in units) + 1
    with context.stages("merge"):
        built = load_or_make_racing(
            store, record_path, BuiltIndex, lambda: _finish(context, build, trained, parts, base_ordinals)
        )
    delete_shards(store, parts)
    return built


def _measured_plan(
    context: FlowContext, vectors: IndexInput, source: LiveRows, units: tuple[VectorUnit, ...], rows: int
) -> IndexPlan:
    """Plan the index. If `auto` has to compress the vectors, first measure kinds on a sample of them."""
    settings, dim, target = context.job.index, vectors.indexed_dim, context.job.gates.wanted_recall
    if not (kinds := variants_to_measure(rows, dim, settings, target)):
        return plan_index(rows, dim, settings)
    return plan_index(
        rows, dim, settings, measure_kinds(context, source, units, vectors.transform, kinds), target
    )


def is_small_training(plan: IndexPlan) -> bool:
    """Return whether one CPU trains the index, so that the result is the same on every machine."""
    return plan.train_rows * max(1, plan.nlist) * plan.dim <= _SMALL_TRAINING


def _training_pool(context: FlowContext, plan: IndexPlan) -> Pool:
    """Return one CPU for a small training, else a whole machine.

    The last bits of a training depend on its number of threads.
    """
    if is_small_training(plan):
        return Pool(1)
    return replace(context.workers.machine_pool(context.job.cluster), memory=4.0 * plan.train_rows * plan.dim)


def _finish(
    context: FlowContext,
    build: Build,
    trained: TrainedIndex,
    parts: tuple[FilledPart, ...],
    base_ordinals: int,
) -> BuiltIndex:
    """Merge the shards of each part, choose the search effort and measure."""
    finish = Finish(build, trained, base_ordinals)
    if len(parts) == 1:
        return context.workers.run(finish, parts[0], Pool(1, memory=part_memory(build)))
    merge = MergeShards(build, on_disk=build.plan.on_disk)
    merged = map_in_order(context, merge, parts, needs=ItemNeeds(part_memory(build)))
    return finish_parts(context, finish, parts, merged)


def part_memory(build: Build) -> float:
    """Return the bytes of memory that a part takes when its file is written; 0 for lists on disk."""
    plan = build.plan
    return 0.0 if plan.on_disk else min(plan.file_bytes, build.settings.part_gib * GIB)


def fill_memory(task: FillShard, shards: Sequence[Shard]) -> float:
    """Return the bytes of memory that the largest of the shards takes while it is filled.

    That is twice its size, since faiss copies a full array to one of double size.
    """
    row_bytes = task.build.settings.part_gib * GIB / max(1, task.build.plan.part_rows)
    rows = max(sum(unit.rows for unit in shard.units) for shard in shards)
    return 2.0 * (task.trained.index.bytes + rows * row_bytes)


def live_units(
    workers: Workers, source: LiveRows, units: Sequence[VectorUnit]
) -> tuple[tuple[VectorUnit, ...], int]:
    """Return the units that have live rows, by ordinal, and the number of these rows.

    In this order, addresses ascend in the index and in the table of ids.
    """
    ordered = tuple(sorted(units, key=lambda unit: unit.ordinal))
    counts = tuple(unit.rows for unit in ordered)
    if source.dead:
        counts = workers.run(CountLive(source), ordered, Pool(1))
    return tuple(unit for unit, count in zip(ordered, counts, strict=True) if count), sum(counts)


def shard_count(settings: IndexSettings, plan: IndexPlan, units: int, rows: int) -> int:
    """Return the number of shards to fill, at least one for each part and at most one for each unit.

    The number does not depend on the workers. So another cluster can continue an index that was begun, and
    workers that a cluster adds meanwhile have work.

    Args:
        units: number of units with live rows.
        rows: number of live rows.
    """
    shard_rows = max(_SHARD_VALUES // plan.dim, _SHARD_ROWS_PER_LIST * plan.nlist)
    wanted = settings.shards or -(-rows // shard_rows)
    return min(units, max(plan.parts(rows), wanted if plan.shardable else 1))


def index_identity(job: Job, vectors: IndexInput) -> dict[str, object]:
    """Return everything that determines the index over the live rows of these units, as JSON."""
    users: dict[str, object] = {}
    if vectors.user_queries:
        users = {"users": vectors.user_queries.sha256, "user_recall": job.gates.wanted_user_recall}
    return {
        **users,
        "units": [[unit.ordinal, unit.sha256] for unit in vectors.units],
        "dead": vectors.dead.sha256 if vectors.dead else None,
        "transform": vectors.transform.transform_id if vectors.transform else None,
        "settings": job.index.model_dump(mode="json"),
        "recall": job.gates.recall_at_10,
        "versions": packages("manta-embeddings", "faiss-cpu", "faiss-gpu"),
    }


def fill_parts(
    context: FlowContext, task: FillShard, units: tuple[VectorUnit, ...], rows: int
) -> tuple[FilledPart, ...]:
    """Fill the live rows of the units into the shards of one or more parts of the index.

    Args:
        rows: number of live rows.
    """
    plan = task.build.plan
    shards_of_parts = divide_into_parts(
        units, plan.parts(rows), shard_count(context.job.index, plan, len(units), rows)
    )
    shards = [shard for of_part in shards_of_parts for shard in of_part]
    with context.stages("index", rows) as bar:
        gpus = context.job.cluster.index_gpus
        on_device = replace(task, on_gpu=gpus > 0)
        needs = ItemNeeds(fill_memory(task, shards), gpus)
        records = iter(map_in_order(context, on_device, shards, bar, needs))
        bar.reach(rows)
    return tuple(
        FilledPart(
            number=number,
            next_ordinal=of_part[-1].units[-1].ordinal + 1,
            shards=tuple(islice(records, len(of_part))),
        )
        for number, of_part in enumerate(shards_of_parts)
    )


def delete_shards(store: Store, parts: Sequence[FilledPart]) -> None:
    """Delete the merged shards, which together are as large as the index."""
    in_threads(store.delete, [shard.index.path for part in parts for shard in part.shards])


def divide_into_parts(units: Sequence[VectorUnit], parts: int, shards: int) -> tuple[tuple[Shard, ...], ...]:
    """Divide units into parts, and each part into shards. The numbers of shards continue from part to part.

    Args:
        parts: largest number of parts.
        shards: approximate number of shards of all parts together.
    """
    numbers = count()
    return tuple(
        tuple(
            Shard(number=next(numbers), units=of_shard)
            for of_shard in divide_units(of_part, -(-shards // parts))
        )
        for of_part in divide_units(units, parts)
    )


def divide_units(units: Sequence[VectorUnit], groups: int) -> list[tuple[VectorUnit, ...]]:
    """Divide units into at most `groups` nonempty groups of consecutive units with about equal rows."""
    ends = np.cumsum([unit.rows for unit in units])
    cuts = np.searchsorted(ends, ends[-1] * np.arange(1, groups) / groups, side="left") + 1
    runs = np.split(np.arange(len(units)), np.unique(np.minimum(cuts, len(units))))
    return [tuple(units[number] for number in run) for run in runs if len(run)]


# Largest number of units that the sample is taken from. Each then gives 200 of the PILOT_ROWS, which are read
# from its stored sample (1.6 MB for 384 dimensions), not from the unit.
_MAX_UNITS = 1_000


class _PilotSample(Stored):
    """Sampled vectors of a pilot."""

    vectors: FileRef


class _MeasuredKind(Stored):
    """The file with the measurement of one kind, for later runs."""

    found: CodeRecall


@dataclass(frozen=True)
class SamplePilot(PlainTask[tuple[VectorUnit, ...], _PilotSample]):
    """Sample vectors of live rows, and store them for the tasks that measure."""

    source: LiveRows
    folder: str

    def work(self, units: tuple[VectorUnit, ...]) -> _PilotSample:
        path = f"{self.folder}/sample.json"
        return load_or_make(self.source.store, path, _PilotSample, lambda: self._sample(units))

    def _sample(self, units: tuple[VectorUnit, ...]) -> _PilotSample:
        from pipeline.index.build.kind_trial import PILOT_ROWS

        store = self.source.store
        _, vectors = self.source.sample(units, PILOT_ROWS, "train")
        with store.scratch() as scratch:
            (scratch / "sample.safetensors").write_bytes(pack({"vectors": vectors}, {}))
            file = put_by_content(store, scratch / "sample.safetensors", f"{self.folder}/", len(vectors))
        return _PilotSample(vectors=file)


@dataclass(frozen=True)
class MeasureKind(PlainTask[KindVariant, CodeRecall]):
    """Train one kind on the sample, and measure the recall of its codes."""

    source: LiveRows
    folder: str
    vectors: FileRef
    transform: Affine | None
    seed: int

    def work(self, variant: KindVariant) -> CodeRecall:
        path = f"{self.folder}/{variant.kind}-{variant.dims_per_byte}.json"
        measured = load_or_make(self.source.store, path, _MeasuredKind, lambda: self._measure(variant))
        return measured.found

    def _measure(self, variant: KindVariant) -> _MeasuredKind:
        from pipeline.index.build.kind_trial import Pilot

        tensors, _ = unpack(self.vectors.read(self.source.store), "vectors")
        pilot = Pilot.of(tensors["vectors"], self.transform, self.seed)
        return _MeasuredKind(found=pilot.measure(variant, self.seed))


def measure_kinds(
    context: FlowContext,
    source: LiveRows,
    units: Sequence[VectorUnit],
    transform: Transform | None,
    kinds: Sequence[KindVariant],
) -> KindRecalls:
    """Measure the recall of kinds on a sample of the rows. Measurements of an earlier run are not repeated.

    Args:
        units: units with live rows, by ordinal.
        transform: transform that the index applies; None for raw vectors.
    """
    spaced = np.unique(np.linspace(0, len(units) - 1, _MAX_UNITS).astype(int))
    chosen = tuple(units[index] for index in spaced)
    identity = {
        "units": [[unit.ordinal, unit.sha256] for unit in chosen],
        "dead": source.dead.sha256 if source.dead else None,
        "transform": transform.transform_id if transform else None,
        "seed": context.job.index.seed,
        "kinds": [list(each) for each in kinds],
        "versions": packages("manta-embeddings", "faiss-cpu", "faiss-gpu"),
    }
    work = f"indexes/work/pilot-{digest_of(identity)[:24]}"

    def measure() -> KindRecalls:
        with context.stages("pilot"):
            vectors = context.workers.run(SamplePilot(source, work), chosen, Pool(1)).vectors
            task = MeasureKind(source, work, vectors, affine_of(transform), context.job.index.seed)
            found = map_in_order(context, task, kinds)
        return KindRecalls(source=f"a sample of {vectors.rows:,} of them", measured=found)

    measured = load_or_make_racing(context.store, f"{work}/kinds.json", KindRecalls, measure)
    if sample := _PilotSample.load_intact(context.store, f"{work}/sample.json"):
        context.store.delete(sample.vectors.path)  # as large as a unit; an earlier run may have left it
    return measured
