"""Reports from workers to the driver: rows done, starts of each item, progress, and heartbeats.

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

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from pipeline.flows.workers.board import Board
from pipeline.flows.workers.processes import WorkerProcess
from pipeline.flows.workers.ray_internals import kv_delete, kv_get, kv_list, kv_put
from pipeline.flows.workers.stall import CpuMeter
from pipeline.keep_alive import on_keep_alive

PATIENCE_S = 900.0  # cloud nodes with a GPU take up to ten minutes to start
_HEARTBEAT_S = 2.0  # time between two heartbeats of one worker
_ACKNOWLEDGE_S = 5.0  # timeout for the board to acknowledge the start of an item


def open_board() -> Any:
    """Return the handle to the board of this driver's connection; create the board if it is missing.

    The board runs on the driver's node, or the node of the Ray client's server, since it has no use without
    the driver. It lives as long as the first handle to it, which `connect` holds.
    """
    context = ray.get_runtime_context()
    return (
        ray.remote(Board)
        .options(
            name=f"manta-{context.get_job_id()}",
            get_if_exists=True,
            num_cpus=0,
            max_restarts=-1,
            max_task_retries=-1,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=context.get_node_id(), soft=False),
        )
        .remote()
    )


class Patience(NamedTuple):
    """Timeouts of the driver for the workers of a connection: cluster.patience_s and cluster.wait_s."""

    patience_s: float
    wait_s: float


def set_patience(patience_s: float, wait_s: float | None = None) -> None:
    """Set the timeouts of this connection. wait_s: None for the same as patience_s."""
    kv_put(_patience_key(), json.dumps([patience_s, wait_s or patience_s]))


def patience() -> Patience:
    """Return the timeouts of this connection."""
    stored = kv_get(_patience_key())
    return Patience(*json.loads(stored)) if stored else Patience(PATIENCE_S, PATIENCE_S)


def _patience_key() -> str:
    return f"patience/{ray.get_runtime_context().get_job_id()}"


class Call:
    """Handle by which the workers of one pool or task report to the board.

    No method fails an item because the board is lost.
    """

    def __init__(self, board: Any, name: str) -> None:
        self.board, self.name = board, name
        self._item: int | None = None
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return Call, (self.board, self.name)

    @cached_property
    def _worker(self) -> WorkerProcess:
        return WorkerProcess.current(ray.get_runtime_context().get_node_id())

    def record_start(self, item: int, second: bool = False) -> int:
        """Record that the item is begun. Returns how often it was begun, this time included.

        Args:
            second: whether this is a second attempt, which is not counted: the first has not died.
        """
        count = len(kv_list(f"{self.name}/{item}/"))
        if not second:
            count += 1
            kv_put(f"{self.name}/{item}/{count}", "")
        with contextlib.suppress(ray.exceptions.RayError):
            with self._lock:
                self._item = item
                acknowledged = self.board.record_start.remote(self.name, item, self._worker)
            # the driver kills only processes that the board knows, so wait before the process can hang
            ray.get(acknowledged, timeout=_ACKNOWLEDGE_S)
        return count

    def start_counts(self) -> Counter[int]:
        """Return how often each unfinished item was begun, second attempts not counted."""
        return Counter(int(key.split("/")[1]) for key in kv_list(f"{self.name}/"))

    def record_end(self, item: int) -> None:
        """Record that the item is done. Does not wait for the board."""
        kv_delete(f"{self.name}/{item}/")
        with self._lock, contextlib.suppress(ray.exceptions.RayError):
            self._item = None
            self.board.record_end.remote(self.name, item)

    def report_rows(self, item: int, rows: int, note: str = "", more: bool = True) -> None:
        """Report the rows of an item that are done. Does not wait for the board.

        Args:
            item: its number.
            rows: number of rows that are done so far.
            note: a metric worth showing.
            more: whether more rows will be reported.
        """
        with contextlib.suppress(ray.exceptions.RayError):
            self.board.record_rows.remote(self.name, item, rows, note, more)

    def send_message(self, sentence: str) -> None:
        """Have the driver print a sentence. Does not wait for the board."""
        with contextlib.suppress(ray.exceptions.RayError):
            self.board.add_message.remote(self.name, sentence)

    def close(self) -> None:
        """Forget the call: it has finished, or was given up."""
        with contextlib.suppress(ray.exceptions.RayError):
            kv_delete(f"{self.name}/")
            self.board.close.remote(self.name)

    @contextlib.contextmanager
    def heartbeats(self) -> Iterator[None]:
        """Send heartbeats while the block runs."""
        over = self.start_heartbeats()
        try:
            yield
        finally:
            over.set()

    def start_heartbeats(self) -> threading.Event:
        """Send heartbeats until the returned event is set or the process ends."""
        over, transfer, meter = threading.Event(), threading.Event(), CpuMeter(os.getpid())

        def send() -> None:
            with on_keep_alive(transfer.set):
                while True:
                    busy, transferred = meter.busy(), transfer.is_set()
                    transfer.clear()
                    # the lock: once `record_end` has returned, no heartbeat for the ended item is sent
                    with contextlib.suppress(ray.exceptions.RayError), self._lock:
                        self.board.record_heartbeat.remote(
                            self.name, self._item, self._worker, busy, transferred
                        )
                    if over.wait(_HEARTBEAT_S):
                        return

        threading.Thread(target=send, daemon=True).start()
        return over
