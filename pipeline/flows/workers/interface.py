"""The interface of workers, which run tasks: on a Ray cluster, or in one process of this machine."""

import abc
from collections.abc import Iterator, Sequence
from typing import ClassVar

from pipeline.flows.workers.nodes import Node
from pipeline.flows.workers.tasks import Item, Pool, Result, Task
from pipeline.log import RunningStage
from pipeline.settings import ClusterSettings, EncodeSettings


class Workers(abc.ABC):
    """Runs tasks. `connect` yields an implementation, which callers use by this interface only."""

    nodes: tuple[Node, ...]
    """nodes of the cluster when the connection was made"""
    grows: bool
    """whether nodes may be added"""
    shares_disk: ClassVar[bool]
    """whether every worker can read the disk of this machine"""

    @property
    def cpus(self) -> int:
        """CPUs of all nodes together, at least 1."""
        return max(1, int(sum(node.cpus for node in self.nodes)))

    @property
    def gpus(self) -> int:
        """GPUs of all nodes together."""
        return int(sum(node.gpus for node in self.nodes))

    @abc.abstractmethod
    def map_units(
        self, task: Task[Item, Result], items: Sequence[Item], pool: Pool, bar: RunningStage | None = None
    ) -> Iterator[tuple[int, Result]]:
        """Apply the task to every item, one at a time per worker.

        Args:
            items: the items, which are begun in this order.
            pool: number and resources of the workers.
            bar: progress bar that shows the rows that tasks report.

        Yields:
            (number of the item, result), in the order in which items finish.

        Raises:
            PipelineError: the task raised it; no further items are begun.
            TransientError: too many processes died at one item, or hung and were killed; no worker was alive
                for longer than cluster.patience_s; or no node had room for one within cluster.wait_s.
            ConfigError: a worker fits neither a node of the cluster nor one that can be added.
        """

    def run(self, task: Task[Item, Result], item: Item, pool: Pool) -> Result:
        """Apply the task to one item on one worker. Raises the errors of `map_units`."""
        ((_, result),) = self.map_units(task, [item], pool)
        return result

    @abc.abstractmethod
    def pool(self, settings: ClusterSettings, work: int) -> Pool:
        """Return a pool of encode workers for `work` units, with at most one worker per unit.

        Raises:
            ConfigError: the cluster cannot grow, and fewer workers than cluster.workers.min, or none, fit.
        """

    def check(self, settings: ClusterSettings) -> None:
        """Raise the ConfigError of `pool` before there is work, unless the cluster can grow."""
        if not self.grows:
            self.pool(settings, 1)

    def wide_pool(self, settings: ClusterSettings, work: int) -> Pool:
        """Return `pool`, with more CPUs for each worker if a small corpus would leave cores idle."""
        return self.pool(settings, work)

    @abc.abstractmethod
    def machine_pool(self, settings: ClusterSettings) -> Pool:
        """Return a pool of one worker with all CPUs of a machine, for work that workers cannot share.

        The worker has a GPU if the job's workers have GPUs. It has only cluster.cpus_per_worker CPUs if
        other jobs use the cluster at the time.
        """

    @abc.abstractmethod
    def index_workers(self, settings: ClusterSettings, work: int) -> int:
        """Return the number of workers for `work` shards of an index."""

    @abc.abstractmethod
    def encode_settings(self, encode: EncodeSettings, pool: Pool | None = None) -> EncodeSettings:
        """Return the settings of an encoder on a worker, with threads for all of its cores.

        Vectors do not depend on the number of threads, not even in their last bit.

        Args:
            encode: settings of the job.
            pool: pool of the worker (default: workers with cluster.cpus_per_worker CPUs each).
        """
