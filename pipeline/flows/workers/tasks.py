"""Tasks: values that travel to a worker and run there, and the resources that their workers need."""

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from pipeline.flows.workers.room import Needs
from pipeline.settings import ClusterSettings

_DEATHS = 20  # at one item in one run: nodes come and go, but nothing dies this often by chance

Item = TypeVar("Item")
Made = TypeVar("Made")
Item_contra = TypeVar("Item_contra", contravariant=True)
Made_co = TypeVar("Made_co", covariant=True)
Listener = Callable[[int, bool], None]


class Task(Protocol[Item_contra, Made_co]):
    """A value that travels to a worker. `start` runs once there, loads the models and returns the work."""

    def start(self) -> Callable[[Item_contra], Made_co]:
        """Load the models and return the work for one item."""
        ...


class PlainTask(abc.ABC, Generic[Item, Made]):
    """A task that loads nothing before its first item."""

    def start(self) -> Callable[[Item], Made]:
        """Return `work`."""
        return self.work

    @abc.abstractmethod
    def work(self, item: Item, /) -> Made:
        """Do the work for one item."""


@dataclass(frozen=True)
class Pool:
    """A number of workers of one kind.

    Lost workers are replaced and their items repeated; finished items are kept.

    Attributes:
        size: the most workers.
        cpus: CPUs of each.
        gpus: GPUs of each; may be a fraction.
        least: the fewest workers (default: `size`).
        now: workers to begin with (default: `size`); more come while there is work and room for them.
        demanded: workers that must find room within cluster.wait_s.
        deaths: processes that may die at one item before the run is given up.
        times: `cpus` as a multiple of cluster.cpus_per_worker, where a small corpus has cores to spare.
    """

    size: int
    cpus: float = 1.0
    gpus: float = 0.0
    least: int | None = None
    now: int | None = None
    demanded: int = 1
    deaths: int = _DEATHS
    times: int = 1

    @classmethod
    def of_one(cls, settings: ClusterSettings) -> "Pool":
        """Return a pool of one encode worker."""
        return cls(1, settings.cpus_per_worker, settings.gpus_per_worker)

    def of_items(self, count: int) -> tuple[int, int, int]:
        """Return (fewest workers, most workers, workers at the beginning) for `count` items."""
        most = max(1, min(self.size, count))
        least = min(self.least or self.size, most)
        return least, most, max(least, min(self.now or self.size, most))

    @property
    def needs(self) -> Needs:
        """The resources that one worker takes, and the workers that must find room."""
        return Needs(self.cpus, self.gpus, self.demanded)


def progress(rows: int, *, last: bool = False) -> None:
    """Report that `rows` rows of the current item are done, for the driver to show. Never waits, never fails.

    From the first call to the `last` one the number must keep changing: an item that makes no progress for
    too long counts as hanging.
    """
    _listener(rows, not last)


def listen(listener: Listener) -> None:
    """Send the progress of this process to `listener(rows, more)` from now on.

    more: whether more rows follow.
    """
    global _listener
    _listener = listener


def _ignore(rows: int, more: bool) -> None: ...


_listener: Listener = _ignore
