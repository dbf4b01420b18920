"""Run tasks without a cluster: one child process works through the items and stays warm between calls.

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

from pipeline.errors import PipelineError, TransientError
from pipeline.flows.workers.room import Node
from pipeline.flows.workers.standstill import Meter, Standstill, hanging, longest_s
from pipeline.flows.workers.tasks import Pool, Task, listen
from pipeline.flows.workers.workers import Item, Made, Workers
from pipeline.keep_alive import on_keep_alive
from pipeline.log import Running, say
from pipeline.settings import ClusterSettings, EncodeSettings

MOST_STARTS = 20  # of one item; no item kills its process this often by chance
_LOOK_S = 0.2
_MEASURE_S = 1.0  # between two looks at the child's CPU time, which is counted in hundredths of a second

# In the child, about its current item: number of reports, rows done, whether more follow, keep-alive signals.
_board: Any = None
# In the child: the current task, pickled, and the work that its start returned.
_started: tuple[bytes, Any] = (b"", None)


class LocalWorkers(Workers):
    """Run tasks in one child process. Tasks and items travel pickled, as to a Ray worker.

    Args:
        patience_s: seconds without progress of an item before the child is killed.
    """

    nodes = (Node(cpus=1.0),)  # the child does one item at a time
    grows = False
    shares_disk = True

    def __init__(self, patience_s: float = ClusterSettings().patience_s) -> None:
        self.patience_s = patience_s
        self._context = multiprocessing.get_context("spawn")
        # without a lock: a stopped or killed child would hold it forever
        self._board = self._context.Array("q", 4, lock=False)
        self._pool: ProcessPoolExecutor | None = None
        self._warmed: Future[bytes] | None = None

    def warm(self, task: Any) -> None:
        """Start the task now, so that its model is loaded by the time work comes."""
        self._warmed = self._executor().submit(_warm, pickle.dumps(task))

    def map_units(
        self, task: Task[Item, Made], items: Sequence[Item], pool: Pool, bar: Running | None = None
    ) -> Iterator[tuple[int, Made]]:
        """Yield results in the order of the items. The pool's size does not matter."""
        packed = pickle.dumps(task)
        finished, slowest_s = 0, 0.0
        for number, item in enumerate(items):
            began, name = time.monotonic(), f"item {number} of {type(task).__name__}"
            at_work = _AtWork(name, finished, longest_s(slowest_s, self.patience_s), bar)
            made = self._made(packed, pickle.dumps(item), at_work)
            finished += self._board[1]
            slowest_s = max(slowest_s, time.monotonic() - began)
            result = pickle.loads(made)
            if isinstance(result, PipelineError):
                raise result
            yield number, result

    def run(self, task: Task[Item, Made], item: Item, pool: Pool) -> Made:
        ((_, made),) = self.map_units(task, [item], pool)
        return made

    def pool(self, settings: ClusterSettings, work: int) -> Pool:
        """Return a pool of the child. A job that asks for GPUs does not run here."""
        return Pool(1, settings.cpus_per_worker)

    def index_workers(self, settings: ClusterSettings, work: int) -> int:
        """Return the number of CPUs of a Ray worker, at most `work`."""
        cpus = max(1, int(settings.cpus_per_worker))
        return max(1, min(settings.index_workers or cpus, cpus, work))

    def encode_settings(self, encode: EncodeSettings, pool: Pool | None = None) -> EncodeSettings:
        """Use all cores, up to OMP_NUM_THREADS."""
        bound, cores = os.environ.get("OMP_NUM_THREADS", ""), len(os.sched_getaffinity(0))
        threads = min(cores, int(bound)) if bound.isdigit() and int(bound) else cores
        return encode.model_copy(update={"threads": max(encode.threads, threads)})

    def close(self) -> None:
        """Kill the child, even in the middle of an item."""
        if self._pool is not None:
            for process in self._processes():
                process.kill()
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def _made(self, task: bytes, item: bytes, at_work: "_AtWork") -> bytes:
        for _ in range(MOST_STARTS):
            self._board[:] = [0, 0, False, 0]
            try:
                future = self._executor().submit(_work, task, item)
                self._follow(future, at_work)
                return future.result()
            except BrokenProcessPool:
                self.close()
        raise TransientError(
            at_work.name,
            "a process that finishes it",
            f"{MOST_STARTS} that died at it",
            "free memory, or see whether the model can be loaded (manta preflight); then run again: "
            "finished work is kept",
        )

    def _follow(self, future: "Future[bytes]", at_work: "_AtWork") -> None:
        """Show the item's progress until it is done; kill a child that shows none."""
        child = next(iter(self._processes()), None)
        if child is None:  # it died at once: the future raises
            return
        standstill, meter, looked, times, moves = Standstill(), Meter(child.pid or 0), time.monotonic(), 0, 0
        while not future.done():
            with contextlib.suppress(TimeoutError):
                future.exception(timeout=_LOOK_S)
            known, (times, rows, counted) = times, _reported(self._board)
            if at_work.bar is not None:
                at_work.bar.reach(at_work.finished + rows)
            if times > known:
                standstill.report(rows, counted)
            if time.monotonic() - looked < _MEASURE_S:
                continue
            before, looked = looked, time.monotonic()
            standstill.look(looked - before)
            if self._board[3] != moves:
                moves = self._board[3]
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
                1, mp_context=self._context, initializer=_begin, initargs=(self._board,)
            )
        return self._pool


@dataclass(frozen=True)
class _AtWork:
    """The child's current item.

    Attributes:
        name: for messages.
        finished: rows of the items before it.
        longest_s: seconds without progress after which the child is killed.
        bar: progress bar.
    """

    name: str
    finished: int
    longest_s: float
    bar: Running | None


def _report(rows: int, more: bool) -> None:
    """Report from the child that `rows` rows of the current item are done, and whether `more` follow."""
    _board[1], _board[2] = rows, more
    _board[0] += 1  # last: a reader that sees the new number also sees the new rows


def _reported(board: Any) -> tuple[int, int, bool]:
    """Return the number of reports, the rows done and whether more follow.

    There is no lock. The number is read first, so a report that arrives in between counts at the next look.
    """
    return int(board[0]), int(board[1]), bool(board[2])


def _begin(board: Any) -> None:
    global _board
    _board = board
    listen(_report)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the driver, which ends the child
    threading.Thread(target=_follow, daemon=True).start()


def _follow() -> None:
    """End with the driver, however it ended, and forward keep-alive signals until then."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        with on_keep_alive(_move):
            parent.join()
        os._exit(1)


def _move() -> None:
    _board[3] += 1  # threads may race and lose a count; only a change matters


def _warm(task: bytes) -> bytes:
    with contextlib.suppress(PipelineError):  # raised again when an item of the task comes
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
