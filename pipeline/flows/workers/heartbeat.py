"""What workers tell while they work: rows done, how often an item was begun, whether it gets on, and that somebody is at work at all.

How often items were begun stands in the cluster's own key-value store: where memory is short, Ray's monitor kills the board with the workers.
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

PATIENCE_S = 900.0  # cloud nodes with a GPU take up to ten minutes to come
_SIGN_S = 2.0  # between two signs of life of one worker
_HEARD_S = 5.0  # for the board to hear of an item; longer than that it is lost
_NAMESPACE = "manta"  # in Ray's key-value store


class _Item:
    """An item at work, as the board knows it."""

    def __init__(self, worker: Worker, now: float) -> None:
        self.worker, self.began, self.standstill, self.silence = worker, now, Standstill(), Standstill()


class Board:
    """An actor beside the driver. A call is one pool or task; an item that starts again counts from its new start."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._calls: dict[str, _State] = {}

    def close(self, call: str) -> None:
        self._calls.pop(call, None)

    def sign(self, call: str, item: int | None, worker: Worker, busy: bool, moving: bool = False) -> None:
        """A worker lives. item: what it is at; busy: whether it computes; moving: whether bytes come or go."""
        state = self._of(call)
        state.heard = self._clock()
        if item is not None:
            at_work = state.at_work.setdefault(
                item, _Item(worker, state.heard)
            )  # unknown to a board that was restarted
            at_work.silence.compute()
            if moving:
                at_work.standstill.move()
            if busy:
                at_work.standstill.compute()

    def begin(self, call: str, item: int, worker: Worker) -> None:
        state = self._of(call)
        state.heard = self._clock()
        state.at_work[item] = _Item(worker, state.heard)

    def end(self, call: str, item: int) -> None:
        state = self._of(call)
        if (ended := state.at_work.pop(item, None)) is not None:
            state.slowest_s = max(state.slowest_s, self._clock() - ended.began)

    def put(self, call: str, item: int, rows: int, note: str = "", counted: bool = True) -> None:
        state = self._of(call)
        state.rows[item], state.note = rows, note
        if (at_work := state.at_work.get(item)) is not None:
            at_work.standstill.tell(rows, counted)

    def hear(self, call: str, sentence: str) -> None:
        self._of(call).said.append(sentence)

    def look(self, call: str) -> "Look":
        """How the call stands. A board that was restarted counts from then."""
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
    """What the board knows of one call. looked, heard: when the driver last asked, and a worker last gave a sign of life."""

    looked: float
    heard: float | None = None
    rows: dict[int, int] = field(default_factory=dict)
    at_work: dict[int, _Item] = field(default_factory=dict)
    slowest_s: float = 0.0
    note: str = ""
    said: list[str] = field(default_factory=list)


class AtWork(NamedTuple):
    """An item at work. still_s: without progress; silent_s: without a sign of life of its worker, which is then stopped or dead."""

    item: int
    worker: Worker
    still_s: float
    silent_s: float


@dataclass(frozen=True)
class Look:
    """rows: done so far; silent_s: since a worker gave a sign of life, None where this life of the board has had none; slowest_s: of the slowest item that is done;
    note: what was shown of it last; said: since the look before."""

    rows: int
    silent_s: float | None
    at_work: tuple[AtWork, ...] = ()
    slowest_s: float = 0.0
    note: str = ""
    said: tuple[str, ...] = ()


def open_board() -> Any:
    """The board of this driver's connection, made where there is none; on the driver's node, since what outlives the driver is of no use.

    It lives as long as the first handle to it, which `connect` holds.
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
    """Seconds that the watches of a connection wait: cluster.patience_s and cluster.wait_s."""

    patience_s: float
    wait_s: float


def expect(patience_s: float, wait_s: float | None = None) -> None:
    """Have every watch of this connection wait so long. wait_s: None: as long as patience_s."""
    _kv()._internal_kv_put(
        _patience_key(), json.dumps([patience_s, wait_s or patience_s]), namespace=_NAMESPACE
    )


def patience() -> Patience:
    """How long the watches of this connection wait."""
    kept = _kv()._internal_kv_get(_patience_key(), namespace=_NAMESPACE)
    return Patience(*json.loads(kept)) if kept else Patience(PATIENCE_S, PATIENCE_S)


def _patience_key() -> str:
    import ray

    return f"patience/{ray.get_runtime_context().get_job_id()}"


def _kv() -> Any:
    """Ray's key-value store, which is part of the cluster's head and has no other interface."""
    from ray.experimental import internal_kv

    return internal_kv


class Call:
    """One pool or task at work, as its workers know it."""

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
        """How often the item was begun, this time included."""
        import ray

        count = 1 + len(_kv()._internal_kv_list(f"{self.name}/{item}/", namespace=_NAMESPACE))
        _kv()._internal_kv_put(f"{self.name}/{item}/{count}", "", namespace=_NAMESPACE)
        with contextlib.suppress(ray.exceptions.RayError):  # a board that is lost fails no item
            with self._lock:
                self._item = item
                heard = self.board.begin.remote(self.name, item, self._worker)
            ray.get(
                heard, timeout=_HEARD_S
            )  # a process that is stopped at once must be known, or nobody ends it
        return count

    def begun(self) -> Counter[int]:
        """How often each item was begun that is not done yet."""
        keys = _kv()._internal_kv_list(f"{self.name}/", namespace=_NAMESPACE)
        return Counter(int(key.decode().split("/")[1]) for key in keys)

    def end(self, item: int) -> None:
        """The item is done. Waits for no board."""
        import ray

        _kv()._internal_kv_del(f"{self.name}/{item}/", del_by_prefix=True, namespace=_NAMESPACE)
        with self._lock, contextlib.suppress(ray.exceptions.RayError):
            self._item = None
            self.board.end.remote(self.name, item)

    def put(self, item: int, rows: int, note: str = "", counted: bool = True) -> None:
        """Waits for nobody; a board that is lost fails no item. note: a figure worth showing; counted: whether more rows follow that will be told."""
        import ray

        with contextlib.suppress(ray.exceptions.RayError):
            self.board.put.remote(self.name, item, rows, note, counted)

    def say(self, sentence: str) -> None:
        """The driver says it. Waits for nobody."""
        import ray

        with contextlib.suppress(ray.exceptions.RayError):
            self.board.hear.remote(self.name, sentence)

    def close(self) -> None:
        """All is done, or given up: nothing of the call is kept."""
        import ray

        with contextlib.suppress(ray.exceptions.RayError):
            _kv()._internal_kv_del(f"{self.name}/", del_by_prefix=True, namespace=_NAMESPACE)
            self.board.close.remote(self.name)

    @contextlib.contextmanager
    def alive(self) -> Iterator[None]:
        """Signs of life while the block runs."""
        over = self.live()
        try:
            yield
        finally:
            over.set()

    def live(self) -> threading.Event:
        """Signs of life from now on, until the event that comes back is set or the process ends."""
        import ray

        over, moved, meter = threading.Event(), threading.Event(), Meter(os.getpid())

        def tell() -> None:
            with at_headway(moved.set):
                while True:
                    with contextlib.suppress(
                        ray.exceptions.RayError
                    ):  # a sign that is lost is no reason to give no more
                        self._sign(meter, moved)
                    if over.wait(_SIGN_S):
                        return

        threading.Thread(target=tell, daemon=True).start()
        return over

    def _sign(self, meter: Meter, moved: threading.Event) -> None:
        busy, moving = meter.busy(), moved.is_set()
        moved.clear()
        with self._lock:  # behind `end` no sign of the ended item
            self.board.sign.remote(self.name, self._item, self._worker, busy, moving)
