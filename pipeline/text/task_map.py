"""The tasks that ingestion is divided into, and the function that applies a task to items."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pipeline.errors import TransientError
from pipeline.store.files.base import Store
from pipeline.store.records.sealed_json import Stored
from pipeline.store.records.write_once import load_or_make

Record = TypeVar("Record", bound=Stored)

OnProgress = Callable[[int, int], None]
"""Called with the number of rows and of input bytes read so far."""


class IngestTask(Protocol):
    """A picklable value that a worker runs: `start` once per process, then the returned function per item."""

    def start(self) -> Callable[[Any], Any]:
        """Return the function that does the work for one item."""
        ...


class TaskMap(Protocol):
    """A function that applies a task to every item, one after the other or on several workers."""

    def __call__(self, task: IngestTask, items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """Yield (number of the item, result), in any order."""
        ...


def map_here(task: IngestTask, items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
    """Apply the task to the items in this process, in their order."""
    work = task.start()
    for number, item in enumerate(items):
        yield number, work(item)


def ignore_progress(rows: int, size: int) -> None:
    """Ignore the report."""


@dataclass(frozen=True)
class TaskRunner:
    """Functions that run the tasks of an ingestion and report its progress."""

    map_tasks: TaskMap = map_here
    """function that runs the tasks. The default runs them in this process, with temporary files on this
    machine; others keep temporary files in the store, from which a killed run resumes"""
    on_progress: OnProgress = ignore_progress
    """called with the rows and the input bytes read so far"""


@dataclass(frozen=True)
class WorkFolder:
    """The folder of the temporary files of an ingestion."""

    store: Store
    path: str

    def load_or_make(self, name: str, kind: type[Record], make: Callable[[Path], Record]) -> Record:
        """Load the record that an earlier run stored, or make it in a scratch folder and store it.

        Raises:
            TransientError: a file is missing: another run of the same ingestion may have removed it.
        """

        def make_in_scratch() -> Record:
            try:
                with self.store.scratch() as scratch:
                    return make(scratch)
            except FileNotFoundError as error:
                raise TransientError(
                    str(error.filename or error),
                    "a file that the ingestion needs",
                    "no such file",
                    "run again: another run may have finished the same ingestion",
                ) from error

        return load_or_make(self.store, f"{self.path}/{name}.json", kind, make_in_scratch)
