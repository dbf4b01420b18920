"""Reports from workers to the driver: rows done, starts of each item, progress, and signs of life.

The starts of each item are counted in the cluster's key-value store: when memory runs out, Ray's monitor may
kill the board along with the workers.
"""

import contextlib
import json
import os
import threading
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

from pipeline.flows.workers.board import Board
from pipeline.flows.workers.standstill import Meter, Worker
from pipeline.keep_alive import on_keep_alive

PATIENCE_S = 900.0  # cloud nodes with a GPU take up to ten minutes to start
_SIGN_S = 2.0  # between two signs of life of one worker
_HEARD_S = 5.0  # timeout for the board to acknowledge an item; after that it counts as lost
_NAMESPACE = "manta"  # in Ray's key-value store


def open_board() -> Any:
    """Return the board of this driver's connection, created if missing.

    It runs on the driver's node, since it has no use without the driver, and lives as long as the first
    handle to it, which `connect` holds.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    context = ray.get_runtime_context()
    return (
        ray.remote(Board)
        .options(
            name=f"manta-{context.get_job_id()}",
            get_if_exists=True,
            num_cpus=0,
            max_restarts=-1,
            max_task_retries=-1,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=context.get_node_id(), soft=True),
        )
        .remote()
    )


class Patience(NamedTuple):
    """Timeouts of a connection's watches: cluster.patience_s and cluster.wait_s."""

    patience_s: float
    wait_s: float


def expect(patience_s: float, wait_s: float | None = None) -> None:
    """Set the timeouts of every watch of this connection. wait_s: None for the same as patience_s."""
    _kv()._internal_kv_put(
        _patience_key(), json.dumps([patience_s, wait_s or patience_s]), namespace=_NAMESPACE
    )


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
        return Counter(
            int(key.decode().split("/")[1])
            for key in _kv()._internal_kv_list(f"{self.name}/", namespace=_NAMESPACE)
        )

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
            with on_keep_alive(moved.set):
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
