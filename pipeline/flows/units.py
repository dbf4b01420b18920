"""The verb that carries the work: every item of a list goes through one task on a pool of Ray Data actors, and comes back as a small value.

Ray moves what names the work, never tensors: an item is a unit's record, an actor reads the unit, writes its output and returns the new record.
"""

import contextlib
import pickle
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from pipeline.errors import PipelineError, TransientError
from pipeline.log import Running

_EVERY_S = 1.0
_MOST_STARTS = 20       # of one item in one run: nodes may come and go, but nothing dies so often by chance

Item = TypeVar("Item")
Made = TypeVar("Made")
Item_contra = TypeVar("Item_contra", contravariant=True)
Made_co = TypeVar("Made_co", covariant=True)


class Task(Protocol[Item_contra, Made_co]):
    """What one worker does: a value that travels; `start` runs once on the worker and loads what is heavy."""

    def start(self) -> Callable[[Item_contra], Made_co]: ...


@dataclass(frozen=True)
class Pool:
    """Actors of one kind. Ray restarts lost actors and repeats their items without limit; finished items keep their records."""

    size: int
    cpus: float = 1.0
    gpus: float = 0.0


def progress(rows: int) -> None:
    """So many rows of the item at work are done; the driver shows it. Waits for nobody; a board that is lost fails no item."""
    _report(rows)


_report: Callable[[int], Any] = lambda rows: None      # noqa: E731  set in a worker while it is at an item


class _Board:
    """What the workers of one pool tell while they work: rows done, and how often each item was begun. An item that starts again counts from its new start."""

    def __init__(self) -> None:
        self._rows: dict[int, int] = {}
        self._begun: dict[int, int] = {}

    def begin(self, item: int) -> int:
        self._begun[item] = self._begun.get(item, 0) + 1
        return self._begun[item]

    def put(self, item: int, rows: int) -> None:
        self._rows[item] = rows

    def total(self) -> int:
        return sum(self._rows.values())


class _Worker:
    """One actor of a pool; Ray Data constructs it once per process. An error of ours comes back as a value, since Ray's wrapping would lose its type."""

    def __init__(self, task: bytes, board: str) -> None:
        self._task, self._board = task, board
        self._work: Callable[[Any], Any] | None = None

    def __call__(self, batch: pa.Table) -> pa.Table:
        items = zip(batch["number"].to_pylist(), batch["item"].to_pylist(), strict=True)
        made = [_attempt(partial(self._make, number), item) for number, item in items]
        return pa.table({"number": batch["number"], "made": made})

    def _make(self, number: int, item: bytes) -> Any:
        global _report
        import ray

        board = ray.get_actor(self._board)
        if ray.get(board.begin.remote(number)) > _MOST_STARTS:          # Ray itself would start it again without end
            remedy = "look for memory that is short, or a model that cannot be loaded (manta preflight); then run again: finished work is kept"
            raise TransientError(f"item {number} of {type(pickle.loads(self._task)).__name__}", "a process that ends it", f"{_MOST_STARTS} that died at it", remedy)

        def report(rows: int) -> None:
            with contextlib.suppress(ray.exceptions.RayError):
                board.put.remote(number, rows)

        _report = report
        if self._work is None:
            self._work = pickle.loads(self._task).start()
        return self._work(pickle.loads(item))


def _attempt(work: Callable[[bytes], Any], item: bytes) -> bytes:
    try:
        return pickle.dumps(work(item))
    except PipelineError as error:
        return pickle.dumps(error)


def _opened(made: bytes) -> Any:
    value = pickle.loads(made)
    if isinstance(value, PipelineError):
        raise value
    return value


def map_units(task: Task[Item, Made], items: Sequence[Item], pool: Pool, bar: Running | None = None) -> Iterator[tuple[int, Made]]:
    """(number of the item, what the task made of it) as they finish; items start in the order given, one at a time per actor. `bar` follows their progress.

    An error of ours raised by the task ends the run and comes out as it was raised. TransientError for an item at which one process after another dies.
    """
    if not items:
        return
    import ray
    from ray.data import ActorPoolStrategy

    rows = [{"number": number, "item": pickle.dumps(item)} for number, item in enumerate(items)]
    with _board(bar) as name:
        made = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
            _Worker,
            batch_size=1,
            batch_format="pyarrow",
            fn_constructor_args=(pickle.dumps(task), name),
            compute=ActorPoolStrategy(size=min(pool.size, len(rows)), max_tasks_in_flight_per_actor=1),
            num_cpus=pool.cpus,
            num_gpus=pool.gpus or None,
        )
        try:
            for row in made.iter_rows():
                yield row["number"], _opened(row["made"])
        except ray.exceptions.RayError as error:
            raise lost_worker(error) from error


@contextlib.contextmanager
def _board(bar: Running | None) -> Iterator[str]:
    """The name under which workers find the pool's board; its total moves `bar` while the block runs."""
    import ray

    name = f"manta-{uuid.uuid4().hex}"
    board = ray.remote(_Board).options(name=name, num_cpus=0, max_restarts=-1).remote()
    over = threading.Event()

    def follow() -> None:
        while bar is not None and not over.wait(_EVERY_S):
            with contextlib.suppress(ray.exceptions.RayError):      # progress is a courtesy: a lost board stops no night
                bar.reach(ray.get(board.total.remote(), timeout=10))

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield name
    finally:
        over.set()
        thread.join()
        ray.kill(board)


def run_task(task: Task[Item, Made], item: Item, pool: Pool) -> Made:
    """What the task makes of one item, on one worker of the cluster."""
    import ray

    remote = ray.remote(_run).options(num_cpus=pool.cpus, num_gpus=pool.gpus or None, max_retries=3)
    try:
        result: Made = _opened(ray.get(remote.remote(pickle.dumps(task), pickle.dumps(item))))
    except ray.exceptions.RayError as error:
        raise lost_worker(error) from error
    return result


def _run(task: bytes, item: bytes) -> bytes:
    return _attempt(lambda packed: pickle.loads(task).start()(pickle.loads(packed)), item)


def lost_worker(error: Exception) -> Exception:
    """A worker that Ray gave up on, as an error that says what to do; anything else is a defect and goes up as it is."""
    import ray

    lost = (ray.exceptions.WorkerCrashedError, ray.exceptions.ActorDiedError, ray.exceptions.NodeDiedError, ray.exceptions.OutOfMemoryError)
    if not isinstance(error, lost):
        return error
    remedy = "run again: finished units are kept; if it repeats, lower encode.max_tokens or run fewer workers (cluster.workers)"
    return TransientError("a worker process", "it to finish its unit", f"{type(error).__name__}: {str(error).splitlines()[0]}", remedy)
