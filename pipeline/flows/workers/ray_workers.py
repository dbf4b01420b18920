"""Workers on a Ray cluster."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pipeline.flows.workers.ray_pool import map_on_ray, run_on_ray
from pipeline.flows.workers.room import SMALLER, Needs, Node
from pipeline.flows.workers.tasks import Pool, Task
from pipeline.flows.workers.workers import Item, Made, Workers
from pipeline.log import Running
from pipeline.settings import ClusterSettings, EncodeSettings

_SAY_HOW_MANY = "set cluster.workers.max, and the cluster's autoscaler adds nodes for them"


@dataclass(frozen=True)
class RayWorkers(Workers):
    """Run tasks on Ray actors.

    Attributes:
        grows: whether an autoscaler can add nodes.
        idle: whether no CPU was in use when the connection was made.
        board: the handle that keeps the board alive as long as the connection.
    """

    nodes: tuple[Node, ...]
    grows: bool = False
    idle: bool = False
    board: Any = field(default=None, repr=False, compare=False)
    shares_disk = False  # nodes of a cluster have disks of their own

    def map_units(
        self, task: Task[Item, Made], items: Sequence[Item], pool: Pool, bar: Running | None = None
    ) -> Iterator[tuple[int, Made]]:
        return map_on_ray(task, items, pool, bar)

    def run(self, task: Task[Item, Made], item: Item, pool: Pool) -> Made:
        return run_on_ray(task, item, pool)

    def pool(self, settings: ClusterSettings, work: int) -> Pool:
        """Return workers.min to workers.max workers; if the cluster cannot grow, at most as many as fit."""
        needs = Needs(settings.cpus_per_worker, settings.gpus_per_worker, settings.workers.min or 1)
        fit = needs.fit(self.nodes)
        asked, wanted = settings.workers, settings.workers.max or max(fit, settings.workers.min or 1)
        if not fit and not (self.grows and (asked.min or asked.max)):
            raise needs.too_large(self.nodes, remedy=_SAY_HOW_MANY if self.grows else SMALLER)
        least = asked.min or (1 if asked.max else wanted)
        if not self.grows:
            if fit < needs.workers:
                raise needs.too_few(self.nodes)
            wanted, least = min(wanted, fit), min(least, fit)
        most = max(1, min(wanted, work))
        least, now = min(least, most), max(1, min(fit, most))
        return Pool(most, needs.cpus, needs.gpus, least=least, now=now, demanded=min(needs.workers, most))

    def wide_pool(self, settings: ClusterSettings, work: int) -> Pool:
        """Widen workers, but not on GPUs, below a set maximum, or on a cluster that can grow or is in use."""
        pool = self.pool(settings, work)
        if settings.gpus_per_worker or settings.workers.max is not None or self.grows or not self.idle:
            return pool
        times = 1
        while Needs(pool.cpus * (times + 1), 0).fit(self.nodes) >= pool.size:
            times += 1
        return replace(pool, cpus=pool.cpus * times, times=times)

    def index_workers(self, settings: ClusterSettings, work: int) -> int:
        """Return at most as many workers as a cluster that cannot grow has CPUs."""
        asked = settings.index_workers or self.cpus
        return max(1, min(asked if self.grows else min(asked, self.cpus), work))

    def encode_settings(self, encode: EncodeSettings, pool: Pool | None = None) -> EncodeSettings:
        """Multiply the threads as the pool multiplies the CPUs of its workers."""
        return encode.model_copy(update={"threads": encode.threads * (pool.times if pool is not None else 1)})
