"""A small night on this machine does without a cluster: one child process works its tasks off, one after the other, and stays warm between them.

Ray takes longer to start, and to start its workers, than such a night has work. What a task promises holds here too: a child that dies, or that hangs and is killed
for it, is started again.
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

from pipeline.errors import PipelineError, TransientError
from pipeline.flows.workers.standstill import Meter, Standstill, hanging, longest_s
from pipeline.headway import at_headway
from pipeline.log import Running, say
from pipeline.settings import ClusterSettings, EncodeSettings

MOST_STARTS = 20  # of one item: nothing dies so often by chance
_LOOK_S = 0.2
_MEASURE_S = 1.0  # between two looks at the child's CPU time, which is counted in hundredths of a second

_told: Any = None  # in the child: of the item at work: how often anything was told, rows done, whether more are counted; signs of headway
_started: tuple[bytes, Any] = (b"", None)  # in the child: the task at hand, and what its start returned


class OneProcess:
    """The child, and how to hand it work. Tasks and items travel pickled, as to a worker of Ray. patience_s: without progress of an item before the child is killed."""

    def __init__(self, patience_s: float = ClusterSettings().patience_s) -> None:
        self.patience_s = patience_s
        self._context = multiprocessing.get_context("spawn")
        self._told = self._context.Array(
            "q", 4, lock=False
        )  # a child that is stopped or killed would keep a lock for ever
        self._pool: ProcessPoolExecutor | None = None
        self._warmed: Future[bytes] | None = None

    def warm(self, task: Any) -> None:
        """Start the task already, so that what is heavy is loaded when work comes."""
        self._warmed = self._executor().submit(_warm, pickle.dumps(task))

    def run(self, task: Any, items: Sequence[Any], bar: Running | None = None) -> Iterator[tuple[int, bytes]]:
        """(number, what the task made of the item, pickled; an error of ours as a value), in order. TransientError for an item at which the child keeps dying."""
        packed = pickle.dumps(task)
        finished, slowest_s = 0, 0.0
        for number, item in enumerate(items):
            began = time.monotonic()
            at_work = _AtWork(
                f"item {number} of {type(task).__name__}",
                finished,
                longest_s(slowest_s, self.patience_s),
                bar,
            )
            made = self._made(packed, pickle.dumps(item), at_work)
            finished += self._told[1]
            slowest_s = max(slowest_s, time.monotonic() - began)
            yield number, made

    def close(self) -> None:
        """End the child, whatever it is at."""
        if self._pool is not None:
            for process in self._processes():
                process.kill()
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def _made(self, task: bytes, item: bytes, at_work: "_AtWork") -> bytes:
        for _ in range(MOST_STARTS):
            self._told[:] = [0, 0, False, 0]
            try:
                future = self._executor().submit(_work, task, item)
                self._follow(future, at_work)
                return future.result()
            except BrokenProcessPool:
                self.close()
        remedy = "look for memory that is short, or a model that cannot be loaded (manta preflight); then run again: finished work is kept"
        raise TransientError(at_work.name, "a process that ends it", f"{MOST_STARTS} that died at it", remedy)

    def _follow(self, future: "Future[bytes]", at_work: "_AtWork") -> None:
        """Show the item's progress until it is done; kill a child that shows none."""
        children = self._processes()
        if not children:  # it died at once: the future says so
            return
        child = children[0]
        standstill, meter, looked, times, moves = Standstill(), Meter(child.pid or 0), time.monotonic(), 0, 0
        while not future.done():
            with contextlib.suppress(TimeoutError):
                future.exception(timeout=_LOOK_S)
            known, (times, rows, counted) = times, _reported(self._told)
            if at_work.bar is not None:
                at_work.bar.reach(at_work.finished + rows)
            if times > known:
                standstill.tell(rows, counted)
            if time.monotonic() - looked < _MEASURE_S:
                continue
            before, looked = looked, time.monotonic()
            standstill.look(looked - before)
            if self._told[3] != moves:
                moves = self._told[3]
                standstill.move()
            if meter.busy():
                standstill.compute()
            if standstill.seconds > at_work.longest_s:
                say(hanging(at_work.name, standstill.seconds))
                child.kill()
                return

    def _processes(self) -> list[Any]:
        return list((self._pool._processes or {}).values()) if self._pool is not None else []

    def _executor(self) -> ProcessPoolExecutor:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                1, mp_context=self._context, initializer=_begin, initargs=(self._told,)
            )
        return self._pool


@dataclass(frozen=True)
class _AtWork:
    """The item that the child has in hand. finished: rows of the items before; longest_s: without progress."""

    name: str
    finished: int
    longest_s: float
    bar: Running | None


_at_hand: OneProcess | None = None


def at_hand() -> OneProcess | None:
    """The child that does all work at the moment, where a night does without Ray."""
    return _at_hand


def arithmetic(encode: EncodeSettings, *, alone: bool | None = None) -> EncodeSettings:
    """Settings of a worker's encoder: on all cores if it is the only worker, within OMP_NUM_THREADS. The number of threads changes no bit of a vector."""
    if not (_at_hand is not None if alone is None else alone):
        return encode
    bound = os.environ.get("OMP_NUM_THREADS", "")
    cores = len(os.sched_getaffinity(0))
    return encode.model_copy(
        update={
            "threads": max(
                encode.threads, min(cores, int(bound)) if bound.isdigit() and int(bound) else cores
            )
        }
    )


def with_threads_of(encode: EncodeSettings, cpus: float, settings: ClusterSettings) -> EncodeSettings:
    """Settings of a worker's encoder that was given `cpus`: its threads grow as its CPUs do beyond cluster.cpus_per_worker."""
    return encode.model_copy(
        update={"threads": max(encode.threads, int(encode.threads * cpus / settings.cpus_per_worker))}
    )


@contextlib.contextmanager
def working_with(process: OneProcess) -> Iterator[None]:
    """Let `process` do all work for the duration of the block."""
    global _at_hand
    outer, _at_hand = _at_hand, process
    try:
        yield
    finally:
        _at_hand = outer


@contextlib.contextmanager
def standing_by(
    wanted: bool, patience_s: float = ClusterSettings().patience_s
) -> Iterator[OneProcess | None]:
    """Start a child process and end it after the block; None if it is not wanted. A child that is already at hand is used and left running."""
    if _at_hand is not None:
        yield _at_hand
        return
    process = OneProcess(patience_s) if wanted else None
    try:
        yield process
    finally:
        if process is not None:
            process.close()


def report(rows: int, counted: bool) -> None:
    """In the child: so many rows of the item at work are done. counted: whether more will be told."""
    if _told is not None:
        _told[1], _told[2] = rows, counted
        _told[0] += 1  # last: a reader of the new number reads nothing older behind it


def _reported(told: Any) -> tuple[int, int, bool]:
    """How often anything was told, and what. Without a lock: the number first, so that a report that comes meanwhile counts at the next look."""
    times = int(told[0])
    return times, int(told[1]), bool(told[2])


def _begin(told: Any) -> None:
    global _told
    _told = told
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver ends the child
    threading.Thread(target=_follow, daemon=True).start()


def _follow() -> None:
    """End with the driver, however it ended, and pass on signs of headway until then."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        with at_headway(_move):
            parent.join()
        os._exit(1)


def _move() -> None:
    _told[3] += 1  # of several threads at once one may be lost; another number is what counts


def _warm(task: bytes) -> bytes:
    with contextlib.suppress(PipelineError):  # whoever has work for the task will hear of it
        pickle.loads(task).start()
    return b""


def _work(task: bytes, item: bytes) -> bytes:
    global _started
    try:
        if _started[0] != task:
            _started = task, pickle.loads(task).start()
        return pickle.dumps(_started[1](pickle.loads(item)))
    except PipelineError as error:
        return pickle.dumps(error)
