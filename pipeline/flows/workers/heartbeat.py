"""Reports from workers to the driver: rows done, starts of each item, progress, and signs of life.

The starts of each item are counted in the cluster's key-value store: when memory runs out, Ray's monitor may
kill the board along with the workers.
"""

import contextlib
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from pipeline.flows.workers.standstill import Meter, Standstill, Worker
from pipeline.headway import at_headway

PATIENCE_S = 900.0  # cloud nodes with a GPU take up to ten minutes to start
_SIGN_S = 2.0  # between two signs of life of one worker
_HEARD_S = 5.0  # timeout for the board to acknowledge an item; after that it counts as lost
_NAMESPACE = "manta"  # in Ray's key-value store


class _Item:
    """The board's entry for an item that a worker has begun."""

    def __init__(self, worker: Worker, now: float) -> None:
        self.worker, self.began, self.standstill, self.silence = worker, now, Standstill(), Standstill()


class Board:
    """The actor that collects reports, on the driver's node.

    A call is one pool or task; an item that starts again counts from its new start.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._calls: dict[str, _State] = {}

    def close(self, call: str) -> None:
        """Forget the call."""
        self._calls.pop(call, None)

    def sign(self, call: str, item: int | None, worker: Worker, busy: bool, moving: bool = False) -> None:
        """Record a sign of life of a worker.

        Args:
            call: the pool or task it works for.
            item: its current item, if any.
            worker: the process.
            busy: whether it used the CPU.
            moving: whether it transferred bytes.
        """
        state = self._of(call)
        state.heard = self._clock()
        if item is not None:
            # a board that was restarted does not know the item
            at_work = state.at_work.setdefault(item, _Item(worker, state.heard))
            at_work.silence.compute()
            if moving:
                at_work.standstill.move()
            if busy:
                at_work.standstill.compute()

    def begin(self, call: str, item: int, worker: Worker) -> None:
        """Record that the worker has begun the item."""
        state = self._of(call)
        state.heard = self._clock()
        state.at_work[item] = _Item(worker, state.heard)

    def end(self, call: str, item: int) -> None:
        """Record that the item is done, and how long it took."""
        state = self._of(call)
        if (ended := state.at_work.pop(item, None)) is not None:
            state.slowest_s = max(state.slowest_s, self._clock() - ended.began)

    def put(self, call: str, item: int, rows: int, note: str = "", counted: bool = True) -> None:
        """Record the rows of an item that are done, a note to show, and whether more rows follow."""
        state = self._of(call)
        state.rows[item], state.note = rows, note
        if (at_work := state.at_work.get(item)) is not None:
            at_work.standstill.report(rows, counted)

    def hear(self, call: str, sentence: str) -> None:
        """Keep a sentence for the driver to print."""
        self._of(call).said.append(sentence)

    def look(self, call: str) -> "Look":
        """Return the state of the call. A board that was restarted counts from its restart."""
        state, now = self._of(call), self._clock()
        elapsed_s, state.looked = now - state.looked, now
        at_work = tuple(
            AtWork(item, each.worker, each.standstill.look(elapsed_s), each.silence.look(elapsed_s))
            for item, each in state.at_work.items()
        )
        said, state.said = tuple(state.said), []
        return Look(
            sum(state.rows.values()),
            None if state.heard is None else now - state.heard,
            at_work,
            state.slowest_s,
            state.note,
            said,
        )

    def _of(self, call: str) -> "_State":
        return self._calls.setdefault(call, _State(self._clock()))


@dataclass
class _State:
    """The board's state of one call.

    Attributes:
        looked: when the driver last asked.
        heard: when a worker last gave a sign of life.
    """

    looked: float
    heard: float | None = None
    rows: dict[int, int] = field(default_factory=dict)
    at_work: dict[int, _Item] = field(default_factory=dict)
    slowest_s: float = 0.0
    note: str = ""
    said: list[str] = field(default_factory=list)


class AtWork(NamedTuple):
    """An item that a worker has begun.

    Attributes:
        item: its number.
        worker: the process.
        still_s: seconds without progress.
        silent_s: seconds without a sign of life; a long silence means that the worker is stopped or dead.
    """

    item: int
    worker: Worker
    still_s: float
    silent_s: float


@dataclass(frozen=True)
class Look:
    """The state of a call.

    Attributes:
        rows: done so far.
        silent_s: seconds since a worker gave a sign of life; None if there was none since the board started.
        at_work: items that workers have begun.
        slowest_s: seconds that the slowest finished item took.
        note: the last note.
        said: sentences since the previous look.
    """

    rows: int
    silent_s: float | None
    at_work: tuple[AtWork, ...] = ()
    slowest_s: float = 0.0
    note: str = ""
    said: tuple[str, ...] = ()


def open_board() -> Any:
    """Return the board of this driver's connection, created if missing.

    It runs on the driver's node, since it has no use without the driver, and lives as long as the first
    handle to it, which `connect` holds.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    context = ray.get_runtime_context()
    here = NodeAffinitySchedulingStrategy(node_id=context.get_node_id(), soft=True)
    options = {
        "name": f"manta-{context.get_job_id()}",
        "get_if_exists": True,
        "num_cpus": 0,
        "max_restarts": -1,
        "max_task_retries": -1,
    }
    return ray.remote(Board).options(scheduling_strategy=here, **options).remote()


class Patience(NamedTuple):
    """Timeouts of a connection's watches: cluster.patience_s and cluster.wait_s."""

    patience_s: float
    wait_s: float


def expect(patience_s: float, wait_s: float | None = None) -> None:
    """Set the timeouts of every watch of this connection. wait_s: None for the same as patience_s."""
    value = json.dumps([patience_s, wait_s or patience_s])
    _kv()._internal_kv_put(_patience_key(), value, namespace=_NAMESPACE)


def patience() -> Patience:
    """Return the timeouts of this connection's watches."""
    kept = _kv()._internal_kv_get(_patience_key(), namespace=_NAMESPACE)
    return Patience(*json.loads(kept)) if kept else Patience(PATIENCE_S, PATIENCE_S)


def _patience_key() -> str:
    import ray

    return f"patience/{ray.get_runtime_context().get_job_id()}"


def _kv() -> Any:
    """Return Ray's key-value store, which is part of the cluster's head and has no public interface."""
    from ray.experimental import internal_kv

    return internal_kv


class Call:
    """A running pool or task, as its workers see it."""

    def __init__(self, board: Any, name: str) -> None:
        self.board, self.name = board, name
        self._item: int | None = None
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return Call, (self.board, self.name)

    @cached_property
    def _worker(self) -> Worker:
        import ray

        return Worker.here(ray.get_runtime_context().get_node_id())

    def begin(self, item: int) -> int:
        """Record that the item is begun. Returns how often it was begun, this time included."""
        import ray

        count = 1 + len(_kv()._internal_kv_list(f"{self.name}/{item}/", namespace=_NAMESPACE))
        _kv()._internal_kv_put(f"{self.name}/{item}/{count}", "", namespace=_NAMESPACE)
        with contextlib.suppress(ray.exceptions.RayError):  # a lost board fails no item
            with self._lock:
                self._item = item
                heard = self.board.begin.remote(self.name, item, self._worker)
            # wait: a process that is stopped right away must be known, or nobody kills it
            ray.get(heard, timeout=_HEARD_S)
        return count

    def begun(self) -> Counter[int]:
        """Return how often each unfinished item was begun."""
        keys = _kv()._internal_kv_list(f"{self.name}/", namespace=_NAMESPACE)
        return Counter(int(key.decode().split("/")[1]) for key in keys)

    def end(self, item: int) -> None:
        """Record that the item is done. Does not wait for the board."""
        import ray

        _kv()._internal_kv_del(f"{self.name}/{item}/", del_by_prefix=True, namespace=_NAMESPACE)
        with self._lock, contextlib.suppress(ray.exceptions.RayError):
            self._item = None
            self.board.end.remote(self.name, item)

    def put(self, item: int, rows: int, note: str = "", counted: bool = True) -> None:
        """Report rows of an item without waiting; a lost board fails no item.

        Args:
            item: its number.
            rows: done so far.
            note: a metric worth showing.
            counted: whether more rows will be reported.
        """
        import ray

        with contextlib.suppress(ray.exceptions.RayError):
            self.board.put.remote(self.name, item, rows, note, counted)

    def say(self, sentence: str) -> None:
        """Have the driver print a sentence. Does not wait for the board."""
        import ray

        with contextlib.suppress(ray.exceptions.RayError):
            self.board.hear.remote(self.name, sentence)

    def close(self) -> None:
        """Forget the call: it has finished, or was given up."""
        import ray

        with contextlib.suppress(ray.exceptions.RayError):
            _kv()._internal_kv_del(f"{self.name}/", del_by_prefix=True, namespace=_NAMESPACE)
            self.board.close.remote(self.name)

    @contextlib.contextmanager
    def alive(self) -> Iterator[None]:
        """Send signs of life while the block runs."""
        over = self.live()
        try:
            yield
        finally:
            over.set()

    def live(self) -> threading.Event:
        """Send signs of life until the returned event is set or the process ends."""
        import ray

        over, moved, meter = threading.Event(), threading.Event(), Meter(os.getpid())

        def send() -> None:
            with at_headway(moved.set):
                while True:
                    busy, moving = meter.busy(), moved.is_set()
                    moved.clear()
                    # a lost sign is no reason to stop; after `end` no sign of the ended item is sent
                    with contextlib.suppress(ray.exceptions.RayError), self._lock:
                        self.board.sign.remote(self.name, self._item, self._worker, busy, moving)
                    if over.wait(_SIGN_S):
                        return

        threading.Thread(target=send, daemon=True).start()
        return over
