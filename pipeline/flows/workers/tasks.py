"""Tasks, which are pickled and run by workers, and the pools of workers that run them."""

import abc
import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from pipeline.errors import PipelineError
from pipeline.flows.workers.nodes import ResourceDemand
from pipeline.settings import ClusterSettings

# Processes that may die at one item in one run: nodes come and go, but no item dies this often by chance.
_MAX_DEATHS = 20

Item = TypeVar("Item")
Result = TypeVar("Result")
Item_contra = TypeVar("Item_contra", contravariant=True)
Result_co = TypeVar("Result_co", covariant=True)
ProgressListener = Callable[[int, bool], None]
"""called with the number of rows done, and whether more rows follow"""
_listener: ProgressListener = lambda rows, more: None  # noqa: E731


class Task(Protocol[Item_contra, Result_co]):
    """A picklable value that a worker runs: `start` once per process, then the returned function per item."""

    def start(self) -> Callable[[Item_contra], Result_co]:
        """Load the models. Returns the function that does the work for one item."""


class PlainTask(abc.ABC, Generic[Item, Result]):
    """A task that loads nothing before its first item."""

    def start(self) -> Callable[[Item], Result]:
        """Return `work`."""
        return self.work

    @abc.abstractmethod
    def work(self, item: Item, /) -> Result:
        """Do the work for one item."""


@dataclass(frozen=True)
class Pool:
    """A number of workers of one kind.

    Lost workers are replaced and their items repeated; finished items are kept.
    """

    size: int
    """greatest number of workers"""
    cpus: float = 1.0
    """CPUs of each worker"""
    gpus: float = 0.0
    """GPUs of each worker; may be a fraction"""
    least: int | None = None
    """least number of workers (default: `size`)"""
    initial: int | None = None
    """workers to begin with (default: `size`); more come while there is work and room for them"""
    required: int = 1
    """number of workers that must find room within cluster.wait_s"""
    max_deaths: int = _MAX_DEATHS
    """number of processes that may die at one item before the run is given up"""
    memory: float = 0.0
    """bytes that Ray reserves for each worker; 0 if workers need too little to reserve it"""
    widening: int = 1
    """`cpus` as a multiple of cluster.cpus_per_worker; above 1 if cores would be idle otherwise"""

    @classmethod
    def of_one(cls, settings: ClusterSettings) -> "Pool":
        """Return a pool of one encode worker."""
        return cls(1, settings.cpus_per_worker, settings.gpus_per_worker)

    def limited_to(self, items: int) -> "Pool":
        """Return the pool with `size`, `least` and `initial` for `items` items, at most one worker each."""
        size = max(1, min(self.size, items))
        least = min(self.least or size, size)
        initial = max(least, min(self.initial or size, size))
        return replace(self, size=size, least=least, initial=initial)

    @property
    def demand(self) -> ResourceDemand:
        """The resources of each worker, and the number of workers that must find room."""
        return ResourceDemand(self.cpus, self.gpus, self.required, self.memory)


def load_result(pickled: bytes) -> Any:
    """Return the result of an item, or raise the PipelineError that its worker returned instead."""
    result = pickle.loads(pickled)
    if isinstance(result, PipelineError):
        raise result
    return result


def progress(rows: int, *, last: bool = False) -> None:
    """Report to the driver that `rows` rows of the current item are done. Does not wait, and does not fail.

    From the first call to the `last` one the number must keep changing: an item whose number stays the same
    for too long counts as hanging.
    """
    _listener(rows, not last)


def set_progress_listener(listener: ProgressListener) -> None:
    """Send the progress of this process to `listener` from now on."""
    global _listener
    _listener = listener
