"""Workers on a Ray cluster. The module imports Ray, so it is imported only to connect to a cluster."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ray

from pipeline.flows.workers.interface import Workers
from pipeline.flows.workers.nodes import REMEDY_SMALLER, Node, ResourceDemand
from pipeline.flows.workers.ray_pool import map_on_ray, run_on_ray
from pipeline.flows.workers.tasks import Item, Pool, Result, Task
from pipeline.log import RunningStage
from pipeline.settings import ClusterSettings, EncodeSettings

_IDLE_WITHIN_S = 10.0  # time within which the workers of the previous stage have to end
_POLL_S = 0.2  # time between two checks of the CPUs in use
_REMEDY_SET_MAX = "set cluster.workers.max, and the cluster's autoscaler adds nodes for them"


@dataclass(frozen=True)
class RayWorkers(Workers):
    """Run tasks on Ray actors."""

    nodes: tuple[Node, ...]
    """nodes of the cluster when the connection was made"""
    grows: bool = False
    """whether an autoscaler can add nodes"""
    idle: bool = False
    """whether no CPU was in use when the connection was made"""
    board: Any = field(default=None, repr=False, compare=False)
    """the handle that keeps the board alive as long as the connection"""
    shares_disk = False  # each node of a cluster has a disk of its own

    def map_units(
        self, task: Task[Item, Result], items: Sequence[Item], pool: Pool, bar: RunningStage | None = None
    ) -> Iterator[tuple[int, Result]]:
        if len(items) == 1:  # a Ray task runs in an idle process; an actor would start one of its own
            yield 0, run_on_ray(task, items[0], pool, bar)
        else:
            yield from map_on_ray(task, items, pool, bar)

    def pool(self, settings: ClusterSettings, work: int) -> Pool:
        """Return a pool of cluster.workers.min to cluster.workers.max workers, at most one per unit of work.

        Without workers.max, the pool has as many workers as fit. If the cluster cannot grow, the pool never
        has more workers than fit.
        """
        minimum, maximum = settings.workers.min, settings.workers.max
        demand = ResourceDemand(settings.cpus_per_worker, settings.gpus_per_worker, minimum or 1)
        fit = demand.fit(self.nodes)
        if not fit and not (self.grows and (minimum or maximum)):
            remedy = _REMEDY_SET_MAX if self.grows else REMEDY_SMALLER
            raise demand.too_large_error(self.nodes, remedy=remedy)
        most = maximum or max(fit, minimum or 1)
        least = minimum or (1 if maximum else most)
        if not self.grows:
            if fit < demand.workers:
                raise demand.too_few_error(self.nodes)
            most, least = min(most, fit), min(least, fit)
        most = max(1, min(most, work))
        return Pool(
            most,
            demand.cpus,
            demand.gpus,
            least=min(least, most),
            initial=max(1, min(fit, most)),
            required=min(demand.workers, most),
        )

    def wide_pool(self, settings: ClusterSettings, work: int) -> Pool:
        """Return `pool`; if cores would be idle, each worker gets a multiple of cluster.cpus_per_worker.

        Workers with GPUs, a set cluster.workers.max, and clusters that can grow or are in use are left as
        they are.
        """
        pool = self.pool(settings, work)
        if settings.gpus_per_worker or settings.workers.max is not None or self.grows or not self.idle:
            return pool
        widening = 1
        while ResourceDemand(pool.cpus * (widening + 1), 0).fit(self.nodes) >= pool.size:
            widening += 1
        return replace(pool, cpus=pool.cpus * widening, widening=widening)

    def machine_pool(self, settings: ClusterSettings) -> Pool:
        gpus = 1.0 if settings.gpus_per_worker else 0.0
        largest = max((node.cpus for node in self.nodes if node.gpus >= gpus), default=0.0)
        if largest > settings.cpus_per_worker and _becomes_idle():
            return Pool(1, largest, gpus)
        return Pool(1, settings.cpus_per_worker, settings.gpus_per_worker)

    def index_workers(self, settings: ClusterSettings, work: int) -> int:
        """Return cluster.index_workers, at most one per shard, and one per CPU if the cluster cannot grow."""
        wanted = settings.index_workers or self.cpus
        return max(1, min(wanted if self.grows else min(wanted, self.cpus), work))

    def encode_settings(self, encode: EncodeSettings, pool: Pool | None = None) -> EncodeSettings:
        """Multiply encode.threads by the same factor as the CPUs of the pool's workers."""
        factor = 1 if pool is None else pool.widening
        return encode.model_copy(update={"threads": encode.threads * factor})


def _becomes_idle() -> bool:
    """Return whether all CPUs of the cluster are free within a few seconds, as workers of the job end."""
    deadline = time.monotonic() + _IDLE_WITHIN_S
    while ray.available_resources().get("CPU", 0.0) < ray.cluster_resources().get("CPU", 0.0):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)
    return True
