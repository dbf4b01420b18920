"""Run tasks without a cluster, in one child process that keeps its models loaded between calls.

Ray takes longer to start, and to start its workers, than a small night takes to run. The guarantees of
`Workers` hold here too: a child that dies, or that hangs and is killed, is replaced.
"""

import contextlib
import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

from pipeline.cores import usable_cores
from pipeline.errors import PipelineError, TransientError
from pipeline.flows.workers.interface import Workers
from pipeline.flows.workers.nodes import Node, ResourceDemand
from pipeline.flows.workers.stall import CpuMeter, StallTimer, hang_message, stall_limit_s
from pipeline.flows.workers.tasks import Item, Pool, Result, Task, load_result, set_progress_listener
from pipeline.keep_alive import on_keep_alive
from pipeline.log import RunningStage, announce
from pipeline.settings import ClusterSettings, EncodeSettings
from pipeline.store.files.disk import translate_disk_errors
from pipeline.terminal import tolerate_lost_messages

MAX_STARTS = 20  # starts of one item; no item kills its process this often by chance
_SHARED_MEMORY = "/dev/shm"  # where multiprocessing makes arrays and semaphores
_POLL_S = 0.2  # time between two reads of the reported rows
_MEASURE_S = 1.0  # time between two measurements of CPU time, which is counted in hundredths of a second

# Indices in the array of shared integers through which the child reports on its current item.
_REPORTS, _ROWS, _MORE_ROWS, _KEEP_ALIVES = range(4)

# In the child: the array of shared integers.
_counters: Any = None
# In the child: the current task, pickled, and the function that its `start` returned.
_current_task: tuple[bytes, Any] = (b"", None)


class LocalWorkers(Workers):
    """Run tasks in one child process. Tasks and items are pickled, as for a Ray worker.

    Args:
        patience_s: seconds without progress of an item before the child is killed.
    """

    nodes = (Node(cpus=1.0),)  # because the child does one item at a time
    grows = False
    shares_disk = True

    def __init__(self, patience_s: float = ClusterSettings().patience_s) -> None:
        self.patience_s = patience_s
        self._context = multiprocessing.get_context("spawn")
        # without a lock, which a stopped or killed child might hold forever
        with translate_disk_errors(_SHARED_MEMORY):
            self._counters = self._context.Array("q", 4, lock=False)
        self._pool: ProcessPoolExecutor | None = None

    def warm(self, task: Any) -> None:
        """Start the task now, so that its model is loaded when the first item comes."""
        self._executor().submit(_warm, pickle.dumps(task))

    def map_units(
        self, task: Task[Item, Result], items: Sequence[Item], pool: Pool, bar: RunningStage | None = None
    ) -> Iterator[tuple[int, Result]]:
        """Yield results in the order of the items. The pool is ignored."""
        pickled_task = pickle.dumps(task)
        finished, slowest_s = 0, 0.0
        for number, item in enumerate(items):
            began = time.monotonic()
            current = _CurrentItem(
                name=f"item {number} of {type(task).__name__}",
                finished_rows=finished,
                stall_limit_s=stall_limit_s(slowest_s, self.patience_s),
                bar=bar,
            )
            pickled = self._run_item(pickled_task, pickle.dumps(item), current)
            finished += self._counters[_ROWS]
            slowest_s = max(slowest_s, time.monotonic() - began)
            yield number, load_result(pickled)

    def pool(self, settings: ClusterSettings, work: int) -> Pool:
        """Return a pool of one worker, the child. A job that asks for GPUs does not run here.

        Raises:
            ConfigError: a local Ray would refuse the settings. They are refused here, too, so that whether a
                job runs does not depend on its size.
        """
        machine = (Node(os.cpu_count() or 1),)
        demand = ResourceDemand(settings.cpus_per_worker, 0.0, settings.workers.min or 1)
        if not demand.fit(machine):
            raise demand.too_large_error(machine)
        if demand.fit(machine) < demand.workers:
            raise demand.too_few_error(machine)
        return Pool(1, settings.cpus_per_worker)

    def machine_pool(self, settings: ClusterSettings) -> Pool:
        return Pool(1, self.encode_settings(EncodeSettings()).threads)

    def index_workers(self, settings: ClusterSettings, work: int) -> int:
        """Return cluster.index_workers, at most one per shard and per CPU of cluster.cpus_per_worker."""
        cpus = max(1, int(settings.cpus_per_worker))
        return max(1, min(settings.index_workers or cpus, cpus, work))

    def encode_settings(self, encode: EncodeSettings, pool: Pool | None = None) -> EncodeSettings:
        """Set one thread per usable core, at most OMP_NUM_THREADS, but not fewer than encode.threads."""
        limit, cores = os.environ.get("OMP_NUM_THREADS", ""), usable_cores()
        threads = min(cores, int(limit)) if limit.isdigit() and int(limit) else cores
        return encode.model_copy(update={"threads": max(encode.threads, threads)})

    def close(self) -> None:
        """Kill the child, even in the middle of an item."""
        if self._pool is not None:
            for process in self._processes():
                process.kill()
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def _run_item(self, task: bytes, item: bytes, current: "_CurrentItem") -> bytes:
        """Run the item, with a new child if one dies. Returns the pickled result or PipelineError."""
        for _ in range(MAX_STARTS):
            self._counters[:] = [0, 0, 0, 0]
            try:
                future = self._executor().submit(_work, task, item)
                self._follow(future, current)
                return future.result()
            except BrokenProcessPool:
                self.close()
        raise TransientError(
            current.name,
            "a process that finishes it",
            f"{MAX_STARTS} that died while working on it",
            "make more memory available, or see whether the model can be loaded (manta preflight); then run "
            "again: finished work is kept",
        )

    def _follow(self, future: "Future[bytes]", current: "_CurrentItem") -> None:
        """Show the item's progress until it is done; kill the child if it hangs."""
        child = next(iter(self._processes()), None)
        if child is None:  # it died at once: the future raises
            return
        stall, meter, measured_at = StallTimer(), CpuMeter(child.pid or 0), time.monotonic()
        reports = keep_alives = 0
        while not future.done():
            with contextlib.suppress(TimeoutError):
                future.exception(timeout=_POLL_S)
            known_reports = reports
            reports, rows, more = _read_report(self._counters)
            if current.bar is not None:
                current.bar.reach(current.finished_rows + rows)
            if reports > known_reports:
                stall.record_rows(rows, more)
            if time.monotonic() - measured_at < _MEASURE_S:
                continue
            before, measured_at = measured_at, time.monotonic()
            stall.advance(measured_at - before)
            if self._counters[_KEEP_ALIVES] != keep_alives:
                keep_alives = self._counters[_KEEP_ALIVES]
                stall.reset()
            if meter.busy():
                stall.record_cpu_use()
            if stall.seconds > current.stall_limit_s:
                announce(hang_message(current.name, stall.seconds))
                child.kill()
                return

    def _processes(self) -> list[Any]:
        return list((self._pool._processes or {}).values()) if self._pool is not None else []

    def _executor(self) -> ProcessPoolExecutor:
        if self._pool is None:
            with translate_disk_errors(_SHARED_MEMORY):
                self._pool = ProcessPoolExecutor(
                    1, mp_context=self._context, initializer=_begin_child, initargs=(self._counters,)
                )
        return self._pool


@dataclass(frozen=True)
class _CurrentItem:
    """The child's current item."""

    name: str
    """description for messages"""
    finished_rows: int
    """number of rows of the items before the current one"""
    stall_limit_s: float
    """seconds without progress after which the child is killed"""
    bar: RunningStage | None
    """progress bar"""


def _report(rows: int, more: bool) -> None:
    """Report from the child that `rows` rows of the current item are done, and whether `more` follow."""
    _counters[_ROWS], _counters[_MORE_ROWS] = rows, more
    _counters[_REPORTS] += 1  # last: a reader that sees the new count also sees the new rows


def _read_report(counters: Any) -> tuple[int, int, bool]:
    """Return the number of reports, the rows done and whether more follow.

    The number of reports is read first, because there is no lock: a report that arrives meanwhile is counted
    at the next call.
    """
    return int(counters[_REPORTS]), int(counters[_ROWS]), bool(counters[_MORE_ROWS])


def _begin_child(counters: Any) -> None:
    global _counters
    _counters = counters
    tolerate_lost_messages()
    set_progress_listener(_report)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the driver, which ends the child
    threading.Thread(target=_follow_driver, daemon=True).start()


def _follow_driver() -> None:
    """End this process when the driver ends, even if it is killed. Until then, count keep-alive signals."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        with on_keep_alive(_count_keep_alive):
            parent.join()
        os._exit(1)


def _count_keep_alive() -> None:
    _counters[_KEEP_ALIVES] += 1  # a race between threads may lose a count, but only a change matters


def _warm(task: bytes) -> None:
    with contextlib.suppress(PipelineError):  # raised again when an item of the task comes
        pickle.loads(task).start()


def _work(task: bytes, item: bytes) -> bytes:
    global _current_task
    try:
        if _current_task[0] != task:
            _current_task = task, pickle.loads(task).start()
        return pickle.dumps(_current_task[1](pickle.loads(item)))
    except PipelineError as error:
        return pickle.dumps(error)
