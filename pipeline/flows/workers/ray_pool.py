"""Run one task over many items on a pool of Ray Data actors, or over one item as a Ray task.

Ray moves only records, never tensors: an item is the record of a unit. An actor reads the unit, writes its
output and returns the new record.
"""

import contextlib
import pickle
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from pipeline.errors import PipelineError, TransientError
from pipeline.flows.workers.heartbeat import Call
from pipeline.flows.workers.metrics import count_unit
from pipeline.flows.workers.tasks import Pool, Task, listen
from pipeline.flows.workers.watch import Watch, watched
from pipeline.flows.workers.workers import Item, Made
from pipeline.log import Running

_LOOK_S = 1.0
_REPORT_S = 0.2
_LATE_S = 10.0  # for Ray Data to end a call that was given up
_ENDS_S = 10.0  # for Ray Data's loop to end

Row = TypeVar("Row")


class _Worker:
    """One actor of a pool; Ray Data constructs it once per process.

    A PipelineError comes back as a value, since Ray's wrapping would lose its type.
    """

    def __init__(self, task: bytes, call: Call) -> None:
        self._task, self._call = task, call
        self._work: Callable[[Any], Any] | None = None
        self._alive = call.live()

    def __call__(self, batch: pa.Table) -> pa.Table:
        items = zip(batch["number"].to_pylist(), batch["item"].to_pylist(), strict=True)
        made = [_attempt(self._task, partial(self._make, number), item) for number, item in items]
        return pa.table({"number": batch["number"], "made": made})

    def _make(self, number: int, item: bytes) -> Any:
        _begin(self._call, number, self._task)
        if self._work is None:
            self._work = pickle.loads(self._task).start()
        made = self._work(pickle.loads(item))
        self._call.end(number)
        return made


def _begin(call: Call, number: int, task: bytes) -> None:
    """Count the start, and from now on send the item's progress to the board, a few times a second."""
    if call.begin(number) > 1:
        count_unit(_name(task), "restarted")
    sent = 0.0

    def report(rows: int, counted: bool) -> None:
        nonlocal sent
        if not counted or time.monotonic() - sent >= _REPORT_S:
            sent = time.monotonic()
            call.put(number, rows, counted=counted)

    listen(report)


def _attempt(task: bytes, work: Callable[[bytes], Any], item: bytes) -> bytes:
    try:
        made = work(item)
    except PipelineError as error:
        count_unit(_name(task), "failed")
        return pickle.dumps(error)
    count_unit(_name(task), "done")
    return pickle.dumps(made)


def _name(task: bytes) -> str:
    return type(pickle.loads(task)).__name__


def _opened(made: bytes) -> Any:
    value = pickle.loads(made)
    if isinstance(value, PipelineError):
        raise value
    return value


def map_on_ray(
    task: Task[Item, Made], items: Sequence[Item], pool: Pool, bar: Running | None = None
) -> Iterator[tuple[int, Made]]:
    """Apply the task to every item on actors of Ray Data, as `Workers.map_units` promises."""
    if not items:
        return
    import ray

    with watched(type(task).__name__, pool.needs, pool.deaths, bar) as (call, watch):
        try:
            for row in _watched_rows(_dataset(task, items, pool, call, watch), watch):
                yield row["number"], _opened(row["made"])
        except ray.exceptions.RayError as error:
            raise lost_worker(error) from error


def _watched_rows(dataset: Any, watch: Watch) -> Iterator[dict[str, Any]]:
    """Yield the rows of a dataset as they come.

    They are read in a thread: Ray Data itself waits forever for actors that cannot start.
    """
    made: queue.SimpleQueue[dict[str, Any] | BaseException | None] = queue.SimpleQueue()

    def run() -> None:
        try:
            for row in dataset.iter_rows():
                made.put(row)
            made.put(None)
        except BaseException as error:  # raised in the caller's thread
            made.put(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        while (row := _next(made, watch)) is not None:
            if isinstance(row, BaseException):
                raise row
            yield row
    finally:
        watch.stop()  # Ray Data's loop ends at its next step
        thread.join(_ENDS_S)


def _next(made: queue.SimpleQueue[Row], watch: Watch) -> Row:
    """Wait for the next value. Raises the error for which the watch gives up."""
    while True:
        with contextlib.suppress(queue.Empty):
            return made.get(timeout=_LOOK_S)
        watch.check(late_s=_LATE_S)


def _dataset(task: Task[Item, Made], items: Sequence[Item], pool: Pool, call: Call, watch: Watch) -> Any:
    import ray
    from ray.data import ActorPoolStrategy

    rows = [{"number": number, "item": pickle.dumps(item)} for number, item in enumerate(items)]
    least, most, first = pool.of_items(len(rows))
    made = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
        _Worker,
        batch_size=1,
        batch_format="pyarrow",
        fn_constructor_args=(pickle.dumps(task), call),
        compute=ActorPoolStrategy(
            min_size=least, max_size=most, initial_size=first, max_tasks_in_flight_per_actor=1
        ),
        num_cpus=pool.cpus,
        num_gpus=pool.gpus or None,
    )
    context = made.context
    # with one item in flight per actor no pool is busier than that
    context.autoscaling_config.actor_pool_util_upscaling_threshold = 1.0
    context.execution_no_progress_timeout_s = -1  # a long unit is not stalled; the watch decides that
    # models load with the first item, so an actor dies at its start only if it is killed from outside
    context.max_consecutive_actor_init_deaths = pool.deaths
    _Patience.watch = watch
    context.custom_execution_callback_classes = [_Patience]
    return made


class _Patience:
    """End Ray Data's loop when the watch gives up. Ray Data creates one per execution."""

    watch: Watch | None = None

    def __init__(self) -> None:
        self._watch = _Patience.watch

    def before_execution_starts(self, executor: Any) -> None: ...

    def on_execution_step(self, executor: Any) -> None:
        if self._watch is not None:
            self._watch.check()

    def after_execution_succeeds(self, executor: Any) -> None: ...

    def after_execution_fails(self, executor: Any, error: Exception) -> None: ...


def run_on_ray(task: Task[Item, Made], item: Item, pool: Pool) -> Made:
    """Apply the task to one item as a Ray task, as `Workers.run` promises."""
    import ray

    remote = ray.remote(_run).options(num_cpus=pool.cpus, num_gpus=pool.gpus or None, max_retries=-1)
    with watched(type(task).__name__, pool.needs, pool.deaths) as (call, watch):
        made = remote.remote(pickle.dumps(task), pickle.dumps(item), call)
        try:
            _wait(made, watch)
            result: Made = _opened(ray.get(made))
        except ray.exceptions.RayError as error:
            raise lost_worker(error) from error
    return result


def _wait(made: Any, watch: Watch) -> None:
    import ray

    while not ray.wait([made], timeout=_LOOK_S)[0]:
        try:
            watch.check()
        except PipelineError:
            ray.cancel(made, force=True)
            raise


def _run(task: bytes, item: bytes, call: Call) -> bytes:
    def work(packed: bytes) -> Any:
        _begin(call, 0, task)
        return pickle.loads(task).start()(pickle.loads(packed))

    with call.alive():
        return _attempt(task, work, item)


def lost_worker(error: Exception) -> Exception:
    """Return a TransientError with a remedy for a worker that Ray gave up on, else the error itself."""
    import ray

    lost = (
        ray.exceptions.WorkerCrashedError,
        ray.exceptions.ActorDiedError,
        ray.exceptions.NodeDiedError,
        ray.exceptions.OutOfMemoryError,
    )
    if not isinstance(error, lost):
        return error
    return TransientError(
        "a worker process",
        "it to finish its unit",
        f"{type(error).__name__}: {str(error).splitlines()[0]}",
        "run again: finished units are kept; if it repeats, lower encode.max_tokens or run fewer workers "
        "(cluster.workers)",
    )
