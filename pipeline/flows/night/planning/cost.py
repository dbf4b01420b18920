"""Predict the cost of a first night on a cluster, stage by stage, from measured rates.

This module is apart from its only user, `night_plan`, because it computes with numbers and reads no files.

A stage has work that its workers share, work that one process does while the others wait, and bytes that the
nodes transfer. Their times are added, as if nothing overlapped.

CPU times are of one core of an AMD EPYC (Zen 5), printed by `python -m tests.benchmarks.rates` unless a
comment names another command. A product is one multiplication with its addition; a value is one component of
a vector.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from pipeline.flows.index.build import is_small_training, shard_count
from pipeline.flows.night.ingest_workers import SMALL_INPUT
from pipeline.flows.night.user_queries import read_user_queries
from pipeline.flows.workers.nodes import Node, ResourceDemand
from pipeline.index.build.index_shape import IndexPlan, variants_to_measure
from pipeline.index.build.sample import SAMPLE_SIZES
from pipeline.models.folder.folder import open_folder
from pipeline.settings import Job
from pipeline.settings.index_kinds import LARGE_NLIST, TWO_LEVEL_LISTS
from pipeline.stats.moments import MERGE_GROUP
from pipeline.text.ingest.bucket_plan import shuffle_requests

# Starting the command and Ray: `python -m tests.benchmarks.night captions`.
START_S = 5.0
# Time of an item in Ray, and of a unit without its rows: 400 units of 10 rows against one of 4,000, see
# tests/benchmarks/README.md, "Nights after the first".
RAY_S_PER_ITEM, UNIT_S = 0.008, 0.025
# Listing, storing and publishing the records of a unit, on the driver: `python -m tests.benchmarks.units`.
DRIVER_S_PER_UNIT = 0.0004
# Gates whose time does not depend on the rows: `python -m tests.benchmarks.night captions`.
GATES_S = 1.6

INGEST_NS_PER_ROW, INGEST_NS_PER_BYTE = 2_600.0, 11.3
INGEST_COPIES = 4  # the input is read; its temporary copy is written and read; units are written
MOMENTS_NS_PER_PRODUCT, MERGE_NS_PER_PRODUCT = 0.031, 8.1
HASH_NS_PER_BYTE = 0.67
WRITE_NS_PER_BYTE, READ_NS_PER_BYTE = 2.0 + HASH_NS_PER_BYTE, 1.9 + HASH_NS_PER_BYTE
ID_NS = 1_000.0  # hashing an id, by which rows are sampled
PILOT_NS_PER_VALUE = 230.0
KMEANS_PRODUCTS_PER_S = 3.9e10
TRUTH_PRODUCTS_PER_S = 2.2e10
FLAT_PRODUCTS_PER_S = 3.7e10
# Comparing rows with groups of centroids, at 16,384 lists.
GROUPED_PRODUCTS_PER_S = 2.06e10
# Building a graph of 16,384 centroids; with more, a centroid takes longer by the logarithm of their number
# (Malkov and Yashunin 2018, 4.2).
GRAPH_BUILD_NS_PER_VALUE, GRAPH_LISTS = 1_189.0, 16_384
MEAN_NS_PER_VALUE = 0.81  # computing a centroid, the mean of the rows of a list
CODE_NS_PER_VALUE, RABITQ_NS_PER_VALUE = 6.0, 17.0
MERGE_NS_PER_BYTE = 8.2
CHECK_NS_PER_ROW = 110.0
SCAN_NS_PER_VALUE = 0.3  # uncompressed vectors; codes take less
GATES_NS_PER_ROW = 290.0

# k-means of faiss on one Tesla P100, published: a million rows of 256 dimensions, 20,000 centroids and 25
# rounds in 55 s (https://github.com/facebookresearch/faiss/wiki/Low-level-benchmarks). Not measured here.
GPU_KMEANS_PRODUCTS_PER_S = 1e6 * 256 * 20_000 * 25 / 55
# Network of a node, assumed: 10 Gbit/s, to a store that is never the bottleneck.
NODE_BYTES_PER_S = 1.25e9
# Time of a small request to an object store, assumed, and requests that a process makes at a time.
REQUEST_S, REQUESTS_AT_ONCE = 0.025, 16

# Sizes that the night itself uses. A row that is read has 65 bytes besides its text: a short id, two digests
# and numbers.
PART_BYTES, PART_ROW_BYTES = 64 << 20, 65
SAMPLED_ROWS, TRAIN_SAMPLE_ROWS = sum(SAMPLE_SIZES.values()), SAMPLE_SIZES["train"]
UNITS_PER_MERGE = MERGE_GROUP
KMEANS_ROUNDS, REFINING_ROUNDS, GROUPS_PER_ROW = 10, 6, 8
PILOT_UNITS, PILOT_ROWS = 1_000, 200_000
TEXT_UNITS = 256  # corpus units that whitening's texts are sampled from
# Lists that are visited in all while the effort is chosen (nprobe 1, 2, 3, 4, 6 ... 96), and passes over the
# parts of an index, each at four of these efforts.
VISITED_LISTS, MEASURE_PASSES = 400, 8


class StageCost(NamedTuple):
    """The predicted cost of one stage."""

    stage: str
    """name of the stage"""
    cpu_s: float
    """CPU seconds of all processes"""
    gpu_s: float
    """GPU seconds of all processes"""
    alone_s: float
    """seconds in which one process works and the others wait"""
    moved_bytes: float
    """bytes that are read from the store or written to it"""
    requests: float
    """number of small requests that workers wait for"""
    workers: int
    """number of workers that share the work; 1 if one process does all"""
    wall_s: float
    """seconds from the beginning of the stage to its end"""


@dataclass(frozen=True)
class NightCost:
    """The predicted cost of a night on all nodes of a cluster."""

    nodes: int
    stages: tuple[StageCost, ...]

    @property
    def hours(self) -> float:
        """Hours from the beginning of the night to its end."""
        return sum(stage.wall_s for stage in self.stages) / 3_600

    @property
    def node_hours(self) -> float:
        """Hours times nodes."""
        return self.hours * self.nodes

    def of(self, stage: str) -> StageCost:
        """Return the cost of one stage."""
        return next(each for each in self.stages if each.stage == stage)

    def facts(self) -> dict[str, Any]:
        """Return the costs as a JSON object."""
        stages = [each._asdict() for each in self.stages]
        return {"hours": self.hours, "node_hours": self.node_hours, "stages": stages}


@dataclass(frozen=True)
class StageWork:
    """The work of one stage."""

    cpu_s: float = 0.0
    """CPU seconds that the workers share"""
    gpu_s: float = 0.0
    """GPU seconds that the workers share; the CPU of a worker waits for its GPU"""
    workers: int = 1
    """largest number of workers"""
    items: int = 1
    """number of items that are handed to the workers"""
    largest: float = 1.0
    """the largest item, as a proportion of the work"""
    moved_bytes: float = 0.0
    """bytes that the items transfer"""
    alone_s: float = 0.0
    """CPU seconds of one process, while the others wait"""
    alone_bytes: float = 0.0
    """bytes that this process transfers"""
    requests: float = 0.0
    """number of small requests that the workers wait for"""
    gpus: float = 1.0
    """GPUs of all workers together; workers that share one take turns"""

    def cost(self, stage: str, nodes: int) -> StageCost:
        """Return the cost on a number of nodes.

        Idle workers take the next item, so their time is within the bound of Graham (1966). The stage takes
        at least the time of its GPUs, and the time in which the driver hands out the items one by one.
        """
        shared_s = (self.cpu_s + self.gpu_s) * (1 / self.workers + self.largest * (1 - 1 / self.workers))
        moved_s = self.moved_bytes / (min(nodes, self.items) * NODE_BYTES_PER_S)
        moved_s += self.requests * REQUEST_S / (self.workers * REQUESTS_AT_ONCE)
        handed_out_s = self.items * RAY_S_PER_ITEM if self.workers > 1 else 0.0
        alone_s = self.alone_s + self.alone_bytes / NODE_BYTES_PER_S
        return StageCost(
            stage=stage,
            cpu_s=self.cpu_s + self.alone_s,
            gpu_s=self.gpu_s,
            alone_s=alone_s,
            moved_bytes=self.moved_bytes + self.alone_bytes,
            requests=self.requests,
            workers=self.workers,
            wall_s=alone_s + max(shared_s + moved_s, self.gpu_s / self.gpus, handed_out_s),
        )


@dataclass(frozen=True)
class NightSize:
    """The size of a night, and the speed of its encoder."""

    rows: int
    """number of rows"""
    text_bytes: float
    """bytes of a text, on average"""
    dim: int
    """dimension of the encoder's vectors"""
    rows_per_s: float
    """rows that one worker encodes in a second"""
    index: IndexPlan
    """plan of the index"""
    reads_on_workers: bool = True
    """False if only the machine that runs the command can read the corpus"""


def predict_cost(job: Job, size: NightSize, nodes: Sequence[Node]) -> NightCost:
    """Predict the cost of a first night on the nodes, which do nothing else.

    Not counted: kinds of index that train more than lists (opq_ivf_pq, factory strings with PQ), a flow as
    transform, gates.relevance, and waiting for nodes.

    Raises:
        ConfigError: no encode worker fits the nodes.
    """
    predictor = _Predictor(job, size, tuple(nodes))
    return NightCost(len(nodes), tuple(work.cost(stage, len(nodes)) for stage, work in predictor.stages()))


@dataclass(frozen=True)
class _Predictor:
    """The work of each stage; see `predict_cost`."""

    job: Job
    size: NightSize
    nodes: tuple[Node, ...]

    def stages(self) -> Iterator[tuple[str, StageWork]]:
        """Yield the stages in the order of a night."""
        yield "start", StageWork(alone_s=START_S)
        yield "ingest", self._ingest()
        yield "encode", self._encode()
        yield "whiten", self._whiten()
        if kinds := self._kinds_to_measure:
            yield "pilot", self._pilot(kinds)
        if self.size.index.train_rows:
            yield "train", self._train()
        yield "index", self._fill()
        yield "merge", self._merge()
        yield "measure", self._measure()
        yield "gates", self._gates()

    @cached_property
    def _cpus(self) -> int:
        return max(1, int(sum(node.cpus for node in self.nodes)))

    @cached_property
    def _units(self) -> int:
        return -(-self.size.rows // self.job.encode.unit_rows)

    @cached_property
    def _unit_rows(self) -> int:
        """Rows of the largest unit."""
        return min(self.size.rows, self.job.encode.unit_rows)

    @cached_property
    def _vector_bytes(self) -> int:
        """Bytes of a stored vector."""
        return self.size.dim * (2 if self.job.encode.vectors == "float16" else 4)

    @cached_property
    def _sample_bytes(self) -> float:
        """Bytes of the stored sample of one unit."""
        return min(self._unit_rows, SAMPLED_ROWS) * 4.0 * self.size.dim

    @cached_property
    def _kinds_to_measure(self) -> int:
        target = self.job.gates.wanted_recall
        return len(variants_to_measure(self.size.rows, self.size.index.dim, self.job.index, target))

    def _ingest(self) -> StageWork:
        size = self.size
        text_bytes = size.rows * size.text_bytes
        on_workers = size.reads_on_workers and text_bytes > SMALL_INPUT
        parts = math.ceil((text_bytes + size.rows * PART_ROW_BYTES) / PART_BYTES)
        requests = shuffle_requests(size.rows, parts, self.job.encode.unit_rows, self._cpus)
        return StageWork(
            cpu_s=1e-9 * (size.rows * INGEST_NS_PER_ROW + text_bytes * INGEST_NS_PER_BYTE),
            workers=self._cpus if on_workers else 1,
            items=self._units if on_workers else 1,
            largest=self._unit_rows / size.rows if on_workers else 1.0,
            moved_bytes=INGEST_COPIES * text_bytes,
            requests=requests if on_workers else 0.0,
        )

    def _encode(self) -> StageWork:
        size, cluster = self.size, self.job.cluster
        demand = ResourceDemand(cluster.cpus_per_worker, cluster.gpus_per_worker)
        if not (fit := demand.fit(self.nodes)):
            raise demand.too_large_error(self.nodes)
        encode_s = size.rows / size.rows_per_s
        row_ns = size.dim**2 * MOMENTS_NS_PER_PRODUCT + self._vector_bytes * WRITE_NS_PER_BYTE
        store_s = 1e-9 * size.rows * row_ns + self._units * UNIT_S
        on_gpu, workers = cluster.gpus_per_worker > 0, min(cluster.workers.max or fit, fit)
        return StageWork(
            cpu_s=store_s if on_gpu else store_s + encode_s,
            gpu_s=encode_s if on_gpu else 0.0,
            gpus=workers * cluster.gpus_per_worker or 1.0,
            workers=workers,
            items=self._units,
            largest=self._unit_rows / size.rows,
            moved_bytes=size.rows * (size.text_bytes + self._vector_bytes) + self._units * self._sample_bytes,
        )

    def _whiten(self) -> StageWork:
        """Merge the moments of all units; sample the texts to decide with, and encode both halves of them."""
        whiten, products = self.job.whiten, self.size.dim**2
        dev_texts = 0 if whiten.mode == "off" else 2 * whiten.dev_texts
        samples = dev_texts and whiten.dev is None
        sampled_rows = self.size.rows * min(1.0, TEXT_UNITS / self._units) if samples else 0.0
        text_bytes = sampled_rows * self.size.text_bytes
        merge_ns = self._units * products * MERGE_NS_PER_PRODUCT
        return StageWork(
            cpu_s=1e-9 * (merge_ns + text_bytes * READ_NS_PER_BYTE),
            workers=self._cpus,
            items=-(-self._units // UNITS_PER_MERGE),
            largest=min(1.0, UNITS_PER_MERGE / self._units),
            moved_bytes=4.0 * products * self._units + text_bytes,
            alone_s=dev_texts / self.size.rows_per_s,
        )

    def _pilot(self, kinds: int) -> StageWork:
        """Measure kinds, one on each worker, on a sample that one process reads."""
        sampled = min(self._units, PILOT_UNITS) * self._sample_bytes
        rows = min(self.size.rows, PILOT_ROWS)
        return StageWork(
            cpu_s=1e-9 * kinds * rows * self.size.dim * PILOT_NS_PER_VALUE,
            workers=self._cpus,
            items=kinds,
            largest=1 / kinds,
            moved_bytes=kinds * rows * 4.0 * self.size.dim,
            alone_s=1e-9 * sampled * READ_NS_PER_BYTE,
            alone_bytes=sampled,
        )

    def _train(self) -> StageWork:
        """Sample all units twice, for training and for queries, and train on the largest node."""
        plan, units = self.size.index, self._units
        whole_units = plan.train_rows > TRAIN_SAMPLE_ROWS * units
        read = self.size.rows * self._vector_bytes if whole_units else units * self._sample_bytes
        read += units * self._sample_bytes
        hashed = self.size.rows if whole_units else units * min(self._unit_rows, SAMPLED_ROWS)
        sampling = StageWork(
            cpu_s=1e-9 * read * READ_NS_PER_BYTE,
            alone_s=1e-9 * 2 * hashed * ID_NS,
            alone_bytes=read,
        )
        products = KMEANS_ROUNDS * plan.train_rows * plan.nlist * plan.dim
        has_gpu = self.job.cluster.gpus_per_worker > 0
        in_two_levels = self._has_graph or (plan.nlist >= TWO_LEVEL_LISTS and not has_gpu)
        k_means_s = self._two_level_s() if in_two_levels else products / KMEANS_PRODUCTS_PER_S
        cpu_s = sampling.cpu_s + k_means_s
        if in_two_levels:
            values = REFINING_ROUNDS * plan.train_rows * plan.dim
            means_s = 1e-9 * values * MEAN_NS_PER_VALUE
            sampling = replace(sampling, alone_s=sampling.alone_s + means_s)
        if is_small_training(plan):
            return replace(sampling, cpu_s=cpu_s)
        cpus = max(1, int(max(node.cpus for node in self.nodes if node.gpus >= has_gpu)))
        if has_gpu and not self._has_graph:
            gpu_s = products / GPU_KMEANS_PRODUCTS_PER_S
            sampling = replace(sampling, alone_s=sampling.alone_s + sampling.cpu_s / cpus, cpu_s=0)
            return replace(sampling, gpu_s=gpu_s)
        return replace(sampling, cpu_s=cpu_s, workers=cpus, largest=1 / cpus)

    @property
    def _has_graph(self) -> bool:
        """True if the index has so many lists that it has a graph of their centroids."""
        return self.size.index.nlist >= LARGE_NLIST

    def _nearest_list_s(self) -> float:
        """CPU seconds to find the nearest of many lists for one row, in the nearest groups of lists."""
        plan = self.size.index
        groups = math.isqrt(plan.nlist)
        compared = groups + GROUPS_PER_ROW * plan.nlist / groups
        return compared * plan.dim / GROUPED_PRODUCTS_PER_S

    def _two_level_s(self) -> float:
        """CPU seconds to train centroids in two levels, to refine them, and to build their graph, if any."""
        plan = self.size.index
        groups = math.isqrt(plan.nlist)
        products = KMEANS_ROUNDS * plan.train_rows * (groups + plan.nlist / groups) * plan.dim
        hops = math.log(plan.nlist) / math.log(GRAPH_LISTS)
        graph_ns = plan.nlist * GRAPH_BUILD_NS_PER_VALUE if self._has_graph else 0.0
        return (
            products / KMEANS_PRODUCTS_PER_S
            + REFINING_ROUNDS * plan.train_rows * self._nearest_list_s()
            + 1e-9 * plan.dim * graph_ns * hops
        )

    def _fill(self) -> StageWork:
        """Add all rows to shards, and compute the exact neighbours of the queries."""
        plan, index = self.size.index, self.job.index
        shards = shard_count(index, plan, self._units, self.size.rows)
        row_s = self._queries * plan.dim / TRUTH_PRODUCTS_PER_S
        flat_s = plan.nlist * plan.dim / FLAT_PRODUCTS_PER_S
        row_s += self._nearest_list_s() if self._has_graph else flat_s
        code_ns = RABITQ_NS_PER_VALUE if "RaBitQ" in plan.factory else CODE_NS_PER_VALUE
        row_s += 1e-9 * (plan.dim * code_ns + self._vector_bytes * READ_NS_PER_BYTE)
        return StageWork(
            cpu_s=self.size.rows * row_s,
            workers=self._index_workers(),
            items=shards,
            largest=1 / shards,
            moved_bytes=self.size.rows * self._vector_bytes + plan.file_bytes,
        )

    def _merge(self) -> StageWork:
        """Merge the shards of each part, and check that no row is lost or repeated."""
        plan, check_ns = self.size.index, self.size.rows * CHECK_NS_PER_ROW
        return self._per_part(
            cpu_s=1e-9 * (plan.file_bytes * MERGE_NS_PER_BYTE + check_ns),
            moved_bytes=2.0 * plan.file_bytes,
        )

    def _measure(self) -> StageWork:
        """Search all parts at several efforts. An index of one part is still in memory."""
        plan, queries = self.size.index, self._queries
        visited = min(1.0, VISITED_LISTS / plan.nlist) if plan.nlist else 1.0
        search_s = 1e-9 * queries * visited * self.size.rows * plan.dim * SCAN_NS_PER_VALUE
        if plan.parts(self.size.rows) == 1:
            return StageWork(alone_s=search_s)
        read = float(MEASURE_PASSES * plan.file_bytes)
        return self._per_part(cpu_s=search_s + 1e-9 * read * HASH_NS_PER_BYTE, moved_bytes=read)

    def _gates(self) -> StageWork:
        """Read the ids once more, and publish the records of all units."""
        return StageWork(
            cpu_s=1e-9 * self.size.rows * GATES_NS_PER_ROW,
            workers=self._cpus,
            largest=self._unit_rows / self.size.rows,
            alone_s=GATES_S + self._units * DRIVER_S_PER_UNIT,
        )

    @cached_property
    def _queries(self) -> int:
        """Number of vectors that recall is measured with: rows, and queries of gates.queries."""
        rows, gates = self.job.index.queries, self.job.gates
        if gates.queries is None:
            return rows
        return rows + len(read_user_queries(gates, open_folder(self.job.encoder)) or ())

    def _index_workers(self, memory: float = 0.0) -> int:
        wanted = self.job.cluster.index_workers or self._cpus
        fit = ResourceDemand(1.0, 0.0, memory=memory).fit(self.nodes)
        return max(1, min(wanted, self._cpus, fit))

    def _per_part(self, cpu_s: float, moved_bytes: float) -> StageWork:
        """Return work that one worker does for each part of the index."""
        plan = self.size.index
        parts = plan.parts(self.size.rows)
        return StageWork(
            cpu_s=cpu_s,
            workers=self._index_workers(plan.file_bytes / parts),
            items=parts,
            largest=1 / parts,
            moved_bytes=moved_bytes,
        )
