"""Watch a pool or task from the driver: workers run, items progress, and none keeps killing processes."""

import contextlib
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

from pipeline.errors import PipelineError, TransientError
from pipeline.flows.workers.board import CallStatus
from pipeline.flows.workers.heartbeat import Call, Patience, open_board, patience
from pipeline.flows.workers.room import Needs, addable, nodes_alive, nodes_seen
from pipeline.flows.workers.standstill import Worker, end_process, hanging, longest_s
from pipeline.log import Running, say

_POLL_S = 1.0  # between two requests of the call's status
_NODES_S = 5.0  # between two checks of the cluster's nodes
_ANSWER_S = 10.0  # timeout for the board's answer
_END_S = 30.0  # timeout for a node's answer that it killed a process


class Abandoned(Exception):
    """The caller takes no more results of the call."""


class Watch:
    """Follow one call from the driver.

    It shows progress, and fails the call if no worker of it runs or if processes keep dying at one item. A
    worker whose item hangs is killed: that is one more death at the item, and the item begins again.
    """

    def __init__(self, call: Call, task: str, needs: Needs, deaths: int, bar: Running | None) -> None:
        self._call, self._task, self._needs, self._deaths, self._bar = call, task, needs, deaths, bar
        self._failure: PipelineError | None = None
        self._failed = 0.0
        self._over = threading.Event()
        self._nodes = nodes_alive()
        self._nodes_checked = time.monotonic()
        self._last_sign = time.monotonic()  # of life of any worker
        self._last_room = time.monotonic()  # for a worker on the nodes
        self._had_enough = False  # whether there was room for all demanded workers
        self._killed: set[Worker] = set()
        # pending answers of the nodes that kill workers, and the time at which each is given up
        self._kills: dict[Any, float] = {}
        self._any_at_work = (
            False  # whether an item is begun on a living node by a worker that we did not kill
        )
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def check(self, late_s: float = 0.0) -> None:
        """Raise the error for which the call is to be given up, if any.

        Args:
            late_s: delay from the failure to the error.

        Raises:
            TransientError: for longer than cluster.patience_s no worker gave a sign of life; one process
                after another died at an item; or for longer than cluster.wait_s there was no node with room
                for a worker, because it was lost or the autoscaler added none.
            Abandoned: the watch was stopped.
        """
        if self._failure is not None and time.monotonic() - self._failed >= late_s:
            raise self._failure
        if self._over.is_set() and self._failure is None:
            raise Abandoned

    def stop(self) -> None:
        """End the watch."""
        self._over.set()
        self._thread.join()

    def poll(self) -> None:
        """Show the reports of the workers, and fail the call if it does not progress."""
        import ray

        with contextlib.suppress(ray.exceptions.RayError):  # the cluster's head may be away for a moment
            allowed, self._any_at_work = patience(), False
            with contextlib.suppress(ray.exceptions.RayError):  # Ray restarts a board that is lost
                status = ray.get(self._call.board.status.remote(self._call.name), timeout=_ANSWER_S)
                self._show(status, allowed.patience_s)
            self._judge(allowed)

    def _follow(self) -> None:
        import ray

        while self._failure is None and not self._over.wait(_POLL_S):
            self.poll()
            if time.monotonic() - self._nodes_checked >= _NODES_S:
                with contextlib.suppress(ray.exceptions.RayError):  # the next poll tries again
                    self._report_lost_nodes()

    def _show(self, status: CallStatus, allowed_s: float) -> None:
        for sentence in status.messages:
            say(sentence)
        if self._bar is not None:
            self._bar.reach(status.rows, status.note)
        if status.silent_s is not None:
            self._last_sign = max(self._last_sign, time.monotonic() - status.silent_s)
        for item, worker, still_s, silent_s in status.at_work:
            if worker.node not in self._nodes or worker in self._killed:
                continue
            if still_s > longest_s(status.slowest_s, allowed_s) or silent_s > allowed_s:
                say(hanging(f"item {item} of {self._task}", still_s))
                self._killed.add(worker)
                self._kills[_kill(worker)] = time.monotonic() + _END_S
            else:
                self._any_at_work = True
        self._restart_patience()

    def _restart_patience(self) -> None:
        """Restart patience_s when a worker was killed, because its successor needs time to start.

        If the process was already dead, the time has run since its last sign of life: Ray started a successor
        then, if it could.
        """
        import ray

        for answer, until in list(self._kills.items()):
            answered = ray.wait([answer], timeout=0)[0]
            if answered or time.monotonic() > until:
                del self._kills[answer]
            with contextlib.suppress(ray.exceptions.RayError):  # its node may be lost
                if answered and ray.get(answer):
                    self._last_sign = time.monotonic()

    def _judge(self, allowed: Patience) -> None:
        now, nodes = time.monotonic(), [node for _, node in self._nodes.values()]
        room = self._needs.fit(nodes)
        self._had_enough |= room >= self._needs.workers
        if room and self._had_enough:
            self._last_room = now
        elif now - self._last_room > allowed.wait_s:
            if not room and self._needs.fit(nodes_seen()):
                self._fail(self._needs.lost(nodes, allowed.wait_s))
            else:
                self._fail(self._needs.none_came(nodes, allowed.wait_s))
        elif not room:
            self._last_sign = now  # once a node has come, its workers get the whole patience to start
        if now - self._last_sign > allowed.patience_s and not (self._any_at_work or self._kills):
            self._fail(_no_worker(self._needs, allowed.patience_s))
        for item, count in self._call.begun().items():
            if count > self._deaths:  # Ray itself would restart it without limit
                self._fail(_too_many_deaths(f"item {item} of {self._task}", self._deaths))

    def _fail(self, failure: PipelineError) -> None:
        if self._failure is None:
            self._failed, self._failure = time.monotonic(), failure

    def _report_lost_nodes(self) -> None:
        alive, self._nodes_checked = nodes_alive(), time.monotonic()
        for node in self._nodes.keys() - alive.keys():
            address = self._nodes[node][0]
            say(f"node {address} is lost; its unfinished work is repeated on the {len(alive)} that are left")
        self._nodes = alive


def _kill(worker: Worker) -> Any:
    """Kill the process by a task on its node, because a stopped process ignores Ray.

    Does not wait. Returns a reference to a bool: whether the process still existed.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    on_node = NodeAffinitySchedulingStrategy(node_id=worker.node, soft=False)
    return (
        ray.remote(end_process)
        .options(num_cpus=0, max_retries=0, scheduling_strategy=on_node)
        .remote(worker.pid, worker.born)
    )


def _too_many_deaths(item: str, deaths: int) -> TransientError:
    return TransientError(
        item,
        "a process that finishes it",
        f"{deaths} that died at it",
        "free memory (fewer workers by cluster.workers, a smaller encode.max_tokens), or see whether the "
        "model can be loaded (manta preflight); then run again: finished units are kept",
    )


def _no_worker(needs: Needs, allowed_s: float) -> TransientError:
    import ray

    free = ray.available_resources()
    cpus, gpus = free.get("CPU", 0), free.get("GPU", 0)
    return TransientError(
        "cluster",
        f"a running worker ({needs}) within {allowed_s:g} s (cluster.patience_s)",
        f"none, with {cpus:g} CPUs and {gpus:g} GPUs free on {len(nodes_alive())} nodes",
        "add such nodes or end what occupies them, lower cluster.cpus_per_worker and "
        "cluster.gpus_per_worker, or free memory where CPUs are free; then run again: finished units are "
        "kept",
    )


@contextlib.contextmanager
def watched(task: str, needs: Needs, deaths: int, bar: Running | None = None) -> Iterator[tuple[Call, Watch]]:
    """Open a call on the board and watch it while the block runs.

    Args:
        task: class name of the task, for messages.
        needs: resources of one worker.
        deaths: processes that may die at one item.
        bar: progress bar.

    Raises:
        ConfigError: a worker fits no node: none seen in this run, and none that can be added.
    """
    nodes = [node for _, node in nodes_alive().values()]
    if not needs.fit(nodes_seen()) and not needs.fit(more := addable()):
        raise needs.too_large(nodes, more)
    call = Call(open_board(), uuid.uuid4().hex)
    watch = Watch(call, task, needs, deaths, bar)
    try:
        yield call, watch
    finally:
        watch.stop()
        call.close()
