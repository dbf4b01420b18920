"""Predict the cost of a first night on a cluster, stage by stage, from measured rates."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from pipeline.flows.index.build import is_small_training, shard_count
from pipeline.flows.night import rates
from pipeline.flows.night.ingest_workers import SMALL_INPUT
from pipeline.flows.night.stage_cost import NightCost, StageWork
from pipeline.flows.workers.nodes import Node, ResourceDemand
from pipeline.index.plan import IndexPlan, variants_to_measure
from pipeline.settings import Job
from pipeline.settings.index_kinds import LARGE_NLIST
from pipeline.text.corpus.bucket_plan import shuffle_requests


@dataclass(frozen=True)
class NightSize:
    """The size of a night, and the speed of its encoder.

    Attributes:
        rows: number of rows.
        text_bytes: bytes of a text, on average.
        dim: dimension of the encoder's vectors.
        rows_per_s: rows that one worker encodes in a second.
        index: plan of the index.
        reads_on_workers: False if only the machine of the command sees the corpus.
    """

    rows: int
    text_bytes: float
    dim: int
    rows_per_s: float
    index: IndexPlan
    reads_on_workers: bool = True


def predict_cost(job: Job, size: NightSize, nodes: Sequence[Node]) -> NightCost:
    """Predict the cost of a first night on the nodes, which do nothing else.

    Not counted: kinds of index that train more than lists (opq_ivf_pq, factory strings with PQ), a flow as
    transform, gates.queries, gates.relevance, and waiting for nodes.

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
        yield "start", StageWork(alone_s=rates.START_S)
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
        return min(self._unit_rows, rates.SAMPLED_ROWS) * 4.0 * self.size.dim

    @cached_property
    def _kinds_to_measure(self) -> int:
        target = self.job.gates.wanted_recall
        return len(variants_to_measure(self.size.rows, self.size.index.dim, self.job.index, target))

    def _ingest(self) -> StageWork:
        size = self.size
        text_bytes = size.rows * size.text_bytes
        on_workers = size.reads_on_workers and text_bytes > SMALL_INPUT
        parts = math.ceil((text_bytes + size.rows * rates.PART_ROW_BYTES) / rates.PART_BYTES)
        requests = shuffle_requests(size.rows, parts, self.job.encode.unit_rows, self._cpus)
        return StageWork(
            cpu_s=1e-9 * (size.rows * rates.INGEST_NS_PER_ROW + text_bytes * rates.INGEST_NS_PER_BYTE),
            workers=self._cpus if on_workers else 1,
            items=self._units if on_workers else 1,
            largest=self._unit_rows / size.rows if on_workers else 1.0,
            moved_bytes=rates.INGEST_COPIES * text_bytes,
            requests=requests if on_workers else 0.0,
        )

    def _encode(self) -> StageWork:
        size, cluster = self.size, self.job.cluster
        demand = ResourceDemand(cluster.cpus_per_worker, cluster.gpus_per_worker)
        if not (fit := demand.fit(self.nodes)):
            raise demand.too_large_error(self.nodes)
        encode_s = size.rows / size.rows_per_s
        row_ns = size.dim**2 * rates.MOMENTS_NS_PER_PRODUCT + self._vector_bytes * rates.WRITE_NS_PER_BYTE
        store_s = 1e-9 * size.rows * row_ns + self._units * rates.UNIT_S
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
        """Merge the moments of all units, sample the texts that decide, and encode both halves of them."""
        whiten, products = self.job.whiten, self.size.dim**2
        dev_texts = 0 if whiten.mode == "off" else 2 * whiten.dev_texts
        samples = dev_texts and whiten.dev is None
        sampled_rows = self.size.rows * min(1.0, rates.TEXT_UNITS / self._units) if samples else 0.0
        text_bytes = sampled_rows * self.size.text_bytes
        merge_ns = self._units * products * rates.MERGE_NS_PER_PRODUCT
        return StageWork(
            cpu_s=1e-9 * (merge_ns + text_bytes * rates.READ_NS_PER_BYTE),
            workers=self._cpus,
            items=-(-self._units // rates.UNITS_PER_MERGE),
            largest=min(1.0, rates.UNITS_PER_MERGE / self._units),
            moved_bytes=4.0 * products * self._units + text_bytes,
            alone_s=dev_texts / self.size.rows_per_s,
        )

    def _pilot(self, kinds: int) -> StageWork:
        """Measure kinds, one on each worker, on a sample that one process reads."""
        sampled = min(self._units, rates.PILOT_UNITS) * self._sample_bytes
        rows = min(self.size.rows, rates.PILOT_ROWS)
        return StageWork(
            cpu_s=1e-9 * kinds * rows * self.size.dim * rates.PILOT_NS_PER_VALUE,
            workers=self._cpus,
            items=kinds,
            largest=1 / kinds,
            moved_bytes=kinds * rows * 4.0 * self.size.dim,
            alone_s=1e-9 * sampled * rates.READ_NS_PER_BYTE,
            alone_bytes=sampled,
        )

    def _train(self) -> StageWork:
        """Sample all units twice, for training and for queries, and train on the largest node."""
        plan, units = self.size.index, self._units
        whole_units = plan.train_rows > rates.TRAIN_SAMPLE_ROWS * units
        read = self.size.rows * self._vector_bytes if whole_units else units * self._sample_bytes
        read += units * self._sample_bytes
        hashed = self.size.rows if whole_units else units * min(self._unit_rows, rates.SAMPLED_ROWS)
        sampling = StageWork(
            cpu_s=1e-9 * read * rates.READ_NS_PER_BYTE,
            alone_s=1e-9 * 2 * hashed * rates.ID_NS,
            alone_bytes=read,
        )
        products = rates.KMEANS_ROUNDS * plan.train_rows * plan.nlist * plan.dim
        k_means_s = self._graph_training_s() if self._has_graph else products / rates.KMEANS_PRODUCTS_PER_S
        cpu_s = sampling.cpu_s + k_means_s
        if self._has_graph:
            values = rates.REFINING_ROUNDS * plan.train_rows * plan.dim
            means_s = 1e-9 * values * rates.MEAN_NS_PER_VALUE
            sampling = replace(sampling, alone_s=sampling.alone_s + means_s)
        if is_small_training(plan):
            return replace(sampling, cpu_s=cpu_s)
        has_gpu = self.job.cluster.gpus_per_worker > 0
        cpus = max(1, int(max(node.cpus for node in self.nodes if node.gpus >= has_gpu)))
        if has_gpu and not self._has_graph:
            gpu_s = products / rates.GPU_KMEANS_PRODUCTS_PER_S
            sampling = replace(sampling, alone_s=sampling.alone_s + sampling.cpu_s / cpus, cpu_s=0)
            return replace(sampling, gpu_s=gpu_s)
        return replace(sampling, cpu_s=cpu_s, workers=cpus, largest=1 / cpus)

    @property
    def _has_graph(self) -> bool:
        """True if the index has so many lists that it has a graph of their centroids."""
        return self.size.index.nlist >= LARGE_NLIST

    def _nearest_list_s(self) -> float:
        """CPU seconds to find the nearest of many lists for one row, in the nearest groups of them."""
        plan = self.size.index
        groups = math.isqrt(plan.nlist)
        compared = groups + rates.GROUPS_PER_ROW * plan.nlist / groups
        return compared * plan.dim / rates.GROUPED_PRODUCTS_PER_S

    def _graph_training_s(self) -> float:
        """CPU seconds to train centroids in two levels, to refine them, and to build their graph."""
        plan = self.size.index
        groups = math.isqrt(plan.nlist)
        products = rates.KMEANS_ROUNDS * plan.train_rows * (groups + plan.nlist / groups) * plan.dim
        hops = math.log(plan.nlist) / math.log(rates.GRAPH_LISTS)
        graph_ns = plan.nlist * rates.GRAPH_BUILD_NS_PER_VALUE
        return (
            products / rates.KMEANS_PRODUCTS_PER_S
            + rates.REFINING_ROUNDS * plan.train_rows * self._nearest_list_s()
            + 1e-9 * plan.dim * graph_ns * hops
        )

    def _fill(self) -> StageWork:
        """Add all rows to shards, and compute the exact neighbours of the queries."""
        plan, index = self.size.index, self.job.index
        shards = shard_count(index, plan, self._units, self.size.rows)
        row_s = index.queries * plan.dim / rates.TRUTH_PRODUCTS_PER_S
        flat_s = plan.nlist * plan.dim / rates.FLAT_PRODUCTS_PER_S
        row_s += self._nearest_list_s() if self._has_graph else flat_s
        code_ns = rates.RABITQ_NS_PER_VALUE if "RaBitQ" in plan.factory else rates.CODE_NS_PER_VALUE
        row_s += 1e-9 * (plan.dim * code_ns + self._vector_bytes * rates.READ_NS_PER_BYTE)
        return StageWork(
            cpu_s=self.size.rows * row_s,
            workers=self._index_workers(),
            items=shards,
            largest=1 / shards,
            moved_bytes=self.size.rows * self._vector_bytes + plan.file_bytes,
        )

    def _merge(self) -> StageWork:
        """Merge the shards of each part, and check that no row is lost or repeated."""
        plan, check_ns = self.size.index, self.size.rows * rates.CHECK_NS_PER_ROW
        return self._per_part(
            cpu_s=1e-9 * (plan.file_bytes * rates.MERGE_NS_PER_BYTE + check_ns),
            moved_bytes=2.0 * plan.file_bytes,
        )

    def _measure(self) -> StageWork:
        """Search all parts at several efforts. An index of one part is still in memory."""
        plan, queries = self.size.index, self.job.index.queries
        visited = min(1.0, rates.VISITED_LISTS / plan.nlist) if plan.nlist else 1.0
        search_s = 1e-9 * queries * visited * self.size.rows * plan.dim * rates.SCAN_NS_PER_VALUE
        if plan.parts(self.size.rows) == 1:
            return StageWork(alone_s=search_s)
        read = float(rates.MEASURE_PASSES * plan.file_bytes)
        return self._per_part(cpu_s=search_s + 1e-9 * read * rates.HASH_NS_PER_BYTE, moved_bytes=read)

    def _gates(self) -> StageWork:
        """Read the ids once more, and publish the records of all units."""
        return StageWork(
            cpu_s=1e-9 * self.size.rows * rates.GATES_NS_PER_ROW,
            workers=self._cpus,
            largest=self._unit_rows / self.size.rows,
            alone_s=rates.GATES_S + self._units * rates.DRIVER_S_PER_UNIT,
        )

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
