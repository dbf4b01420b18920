"""The interface to whatever executes tasks: workers of a Ray cluster, or one process of this machine."""

import abc
from collections.abc import Iterator, Sequence
from typing import ClassVar, TypeVar

from pipeline.flows.workers.room import Node
from pipeline.flows.workers.tasks import Pool, Task
from pipeline.log import Running
from pipeline.settings import ClusterSettings, EncodeSettings

Item = TypeVar("Item")
Made = TypeVar("Made")


class Workers(abc.ABC):
    """Executes tasks. `connect` yields one; nothing else needs to know which kind it is.

    Attributes:
        nodes: nodes of the cluster when the connection was made.
        grows: whether more nodes may come.
        shares_disk: whether every worker sees the disk of this machine.
    """

    nodes: tuple[Node, ...]
    grows: bool
    shares_disk: ClassVar[bool]

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
        self, task: Task[Item, Made], items: Sequence[Item], pool: Pool, bar: Running | None = None
    ) -> Iterator[tuple[int, Made]]:
        """Apply the task to every item, one at a time per worker.

        Args:
            items: begun in this order.
            pool: number and size of the workers.
            bar: follows the rows that tasks report.

        Yields:
            (number of the item, result), as items finish.

        Raises:
            PipelineError: as the task raised it; the run ends.
            TransientError: process after process died at one item, or hung and was killed; or no worker of
                the pool could be placed, or none was left, for longer than cluster.patience_s.
            ConfigError: a worker fits no node, at once or, where the cluster can grow, after cluster.wait_s.
        """

    @abc.abstractmethod
    def run(self, task: Task[Item, Made], item: Item, pool: Pool) -> Made:
        """Apply the task to one item on one worker. Raises the errors of `map_units`."""

    @abc.abstractmethod
    def pool(self, settings: ClusterSettings, work: int) -> Pool:
        """Return a pool of encode workers for `work` units, at most one per unit.

        Raises:
            ConfigError: fewer workers than workers.min, or none, fit the nodes, and no more nodes can come.
        """

    def check(self, settings: ClusterSettings) -> None:
        """Raise the ConfigError of `pool`, unless a node that may still come could change it."""
        if not self.grows:
            self.pool(settings, 1)

    def wide_pool(self, settings: ClusterSettings, work: int) -> Pool:
        """Return `pool` with more CPUs for each worker if there is more room than work.

        A small corpus then uses all cores.
        """
        return self.pool(settings, work)

    @abc.abstractmethod
    def index_workers(self, settings: ClusterSettings, work: int) -> int:
        """Return the number of workers for `work` shards of an index."""

    @abc.abstractmethod
    def encode_settings(self, encode: EncodeSettings, pool: Pool | None = None) -> EncodeSettings:
        """Return the settings of an encoder on a worker, with as many threads as the worker has cores.

        The number of threads changes no bit of a vector.

        Args:
            encode: settings of the job.
            pool: the workers (default: of cluster.cpus_per_worker).
        """
