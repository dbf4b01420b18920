"""Run one task over many items on a pool of Ray Data actors, or over one item as a Ray task.

Only this module runs Ray Data.

Ray moves only records, never tensors: an item is the record of a unit. An actor reads the unit, writes its
output and returns the new record. An item that takes much longer than its peers gets a second attempt.

A pool gets a few rows more than it has items. A worker that takes such a row has nothing else to do: it
waits until all items are done, or begins one that is slow. The first result of an item counts; both are
equal, and outputs are created once, by the faster one.
"""

import contextlib
import pickle
import queue
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import wait
from functools import cached_property, partial
from typing import Any, TypeVar

import pyarrow as pa
import ray

from pipeline.daemon import in_daemon_thread
from pipeline.errors import PipelineError, TransientError
from pipeline.flows.workers.heartbeat import Call
from pipeline.flows.workers.metrics import count_unit
from pipeline.flows.workers.ray_internals import Execution, configure_pool
from pipeline.flows.workers.tasks import Item, Pool, Result, Task, load_result, set_progress_listener
from pipeline.flows.workers.watch import Watch, watch_call
from pipeline.log import RunningStage

STAND_BY = -1  # number of a row that has no item
_MAX_STAND_BYS = 8  # largest number in a pool: each may add a worker to a pool that can grow
_SLOW_POLL_S = 0.2  # time between two requests for a slow item
_BEGIN_S = 10.0  # time in which the last items, which a pool hands out together, must have been begun


def stand_by_rows(items: int, workers: int) -> int:
    """Return the number of rows to add for second attempts: none for a single item, which has no peers."""
    return 0 if items < 2 else min(workers - 1, _MAX_STAND_BYS)


class StandBy:
    """Second attempts, which a worker makes when it has no item of its own.

    Args:
        call: handle to the board, which knows the slow items.
        items: Ray reference to all pickled items; None in a pool without second attempts.
        count: number of items.
    """

    def __init__(self, call: Call, items: Any, count: int) -> None:
        self._call, self._items, self._count = call, items, count

    def await_slow_item(self) -> int | None:
        """Wait for a slow item. Returns None if all items are done, or if some are not begun in time."""
        deadline = time.monotonic() + _BEGIN_S
        while True:
            try:
                slow = ray.get(self._call.board.claim_slow_item.remote(self._call.name, self._count))
            except ray.exceptions.RayError:  # only the board knows which items are slow
                return None
            if slow.item is not None or slow.all_done:
                return slow.item
            if not slow.all_begun and time.monotonic() > deadline:
                return None
            time.sleep(_SLOW_POLL_S)

    def load(self, item: int) -> bytes:
        """Return the pickled item."""
        pickled: bytes = ray.get(self._items)[item]
        return pickled


_POLL_S = 1.0  # time between two checks of the watch, while a result is awaited
_REPORT_S = 1.0  # least time between two reports of an item's rows; the driver asks for them once a second
_JOIN_S = 10.0  # timeout for the thread that reads Ray Data's results
_STAND_BY_S = 5.0  # timeout for the workers that stand by, to notice that all items are done

Row = TypeVar("Row")


class _Worker:
    """Actor of a pool; Ray Data constructs one per process.

    A PipelineError is returned as a result, because Ray would wrap a raised one and lose its type.
    """

    def __init__(self, task: bytes, call: Call, stand_by: StandBy) -> None:
        self._task, self._call, self._stand_by = task, call, stand_by
        call.start_heartbeats()

    @cached_property
    def _work(self) -> Callable[[Any], Any]:
        work: Callable[[Any], Any] = pickle.loads(self._task).start()
        return work

    def __call__(self, batch: pa.Table) -> pa.Table:
        number, item = batch["number"][0].as_py(), batch["item"][0].as_py()
        if second := number == STAND_BY:
            slow = self._stand_by.await_slow_item()
            if slow is None:
                return pa.table({"number": [STAND_BY], "result": [b""]})
            number, item = slow, self._stand_by.load(slow)
        result = _run_and_count(self._task, partial(self._run_item, number, second), item)
        return pa.table({"number": [number], "result": [result]})

    def _run_item(self, number: int, second: bool, item: bytes) -> Any:
        _begin_item(self._call, number, self._task, second)
        result = self._work(pickle.loads(item))
        self._call.record_end(number)
        return result


def _begin_item(call: Call, number: int, task: bytes, second: bool = False) -> None:
    """Record the start of an item on the board, and then its progress once a second until it ends.

    Args:
        second: whether this is a second attempt beside a slow first one.
    """
    if call.record_start(number, second) > 1 and not second:
        count_unit(_task_name(task), "restarted")
    reported_at = 0.0

    def report(rows: int, more: bool) -> None:
        nonlocal reported_at
        if not more or time.monotonic() - reported_at >= _REPORT_S:
            reported_at = time.monotonic()
            call.report_rows(number, rows, more=more)

    set_progress_listener(report)


def _run_and_count(task: bytes, work: Callable[[bytes], Any], item: bytes) -> bytes:
    """Do the work and count its outcome. Returns the pickled result or the pickled PipelineError."""
    try:
        result = work(item)
    except PipelineError as error:
        count_unit(_task_name(task), "failed")
        return pickle.dumps(error)
    count_unit(_task_name(task), "done")
    return pickle.dumps(result)


def _task_name(task: bytes) -> str:
    return type(pickle.loads(task)).__name__


def map_on_ray(
    task: Task[Item, Result], items: Sequence[Item], pool: Pool, bar: RunningStage | None = None
) -> Iterator[tuple[int, Result]]:
    """Implement `Workers.map_units` for several items with actors of Ray Data."""
    if not items:
        return
    with watch_call(type(task).__name__, pool.demand, pool.max_deaths, bar) as (call, watch):
        try:
            yield from _watched_results(_dataset(task, items, pool, call), watch, len(items))
        except ray.exceptions.RayError as error:
            raise as_worker_error(error) from error


def _watched_results(dataset: Any, watch: Watch, items: int) -> Iterator[tuple[int, Any]]:
    """Yield each item's number and its first result, as they come, until all are there or the watch gives up.

    A thread reads them, because Ray Data itself would wait forever for actors that cannot start.

    Args:
        items: number of items.
    """
    missing = set(range(items))
    rows: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
    execution = Execution.of(dataset)

    def read() -> None:
        try:
            # with prefetching, a row would be withheld until the next one is there
            for batch in dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
                for row in batch.to_pylist():
                    rows.put(row)
        finally:
            rows.put(None)

    reading = in_daemon_thread(read, "manta-results")
    try:
        while missing:
            if (row := _next_row(rows, watch)) is None:
                reading.result()  # raises its error
                raise TransientError(
                    "a pool of workers",
                    "a result of every item",
                    f"none of items {', '.join(map(str, sorted(missing)))}",
                    "run again: finished units are kept; if it repeats, look at the logs below /tmp/ray",
                )
            if row["number"] in missing:  # not the row of a stand-by, or of an item's slower attempt
                missing.remove(row["number"])
                yield row["number"], load_result(row["result"])
        wait([reading], _STAND_BY_S)
    finally:
        if not reading.done():
            execution.abandon()
            wait([reading], _JOIN_S)


def _next_row(rows: queue.SimpleQueue[Row], watch: Watch) -> Row:
    """Wait for the next row. Raises the error of the watch if it gives up."""
    while True:
        with contextlib.suppress(queue.Empty):
            return rows.get(timeout=_POLL_S)
        watch.check()


def _dataset(task: Task[Item, Result], items: Sequence[Item], pool: Pool, call: Call) -> Any:
    """Return the Ray Dataset whose rows are the numbers of the items with their pickled results."""
    # slow to import, and not needed in the process of a worker
    from ray.data import ActorPoolStrategy, from_items

    rows = [{"number": number, "item": pickle.dumps(item)} for number, item in enumerate(items)]
    pool = pool.limited_to(len(items))
    stand_bys = stand_by_rows(len(items), pool.size)
    pickled = ray.put([row["item"] for row in rows]) if stand_bys else None
    stand_by = StandBy(call, pickled, len(rows))
    rows += [{"number": STAND_BY, "item": b""}] * stand_bys
    name = type(task).__name__
    dataset = from_items(rows, override_num_blocks=len(rows)).map_batches(
        type(name, (_Worker,), {}),  # Ray's tools show the name of the class
        batch_size=1,
        batch_format="pyarrow",
        fn_constructor_args=(pickle.dumps(task), call, stand_by),
        compute=ActorPoolStrategy(
            min_size=pool.least,
            max_size=pool.size,
            initial_size=pool.initial,
            max_tasks_in_flight_per_actor=1,
        ),
        num_cpus=pool.cpus,
        num_gpus=pool.gpus or None,
        memory=pool.memory or None,
    )
    dataset.set_name(name)
    configure_pool(dataset, pool.max_deaths)
    return dataset


def run_on_ray(task: Task[Item, Result], item: Item, pool: Pool, bar: RunningStage | None = None) -> Result:
    """Implement `Workers.map_units` for one item with a Ray task."""
    name = type(task).__name__
    remote = ray.remote(_run_task).options(
        name=name,
        num_cpus=pool.cpus,
        num_gpus=pool.gpus or None,
        memory=pool.memory or None,
        max_retries=-1,
    )
    with watch_call(name, pool.demand, pool.max_deaths, bar) as (call, watch):
        reference = remote.remote(pickle.dumps(task), pickle.dumps(item), call)
        try:
            _wait(reference, watch)
            result: Result = load_result(ray.get(reference))
        except ray.exceptions.RayError as error:
            raise as_worker_error(error) from error
    return result


def _wait(reference: Any, watch: Watch) -> None:
    """Wait for the result of a Ray task; cancel the task if the watch gives up."""
    while not ray.wait([reference], timeout=_POLL_S)[0]:
        try:
            watch.check()
        except PipelineError:
            ray.cancel(reference, force=True)
            raise


def _run_task(task: bytes, item: bytes, call: Call) -> bytes:
    def work(pickled: bytes) -> Any:
        _begin_item(call, 0, task)
        return pickle.loads(task).start()(pickle.loads(pickled))

    with call.heartbeats():
        return _run_and_count(task, work, item)


def as_worker_error(error: Exception) -> Exception:
    """Return a TransientError with a remedy if Ray gave up on a worker; return any other error unchanged."""
    worker_losses = (
        ray.exceptions.WorkerCrashedError,
        ray.exceptions.ActorDiedError,
        ray.exceptions.NodeDiedError,
        ray.exceptions.OutOfMemoryError,
    )
    if not isinstance(error, worker_losses):
        return error
    return TransientError(
        "a worker process",
        "it to finish its unit",
        f"{type(error).__name__}: {str(error).splitlines()[0]}",
        "run again: finished units are kept; if it repeats, lower encode.max_tokens or run fewer workers "
        "(cluster.workers)",
    )
