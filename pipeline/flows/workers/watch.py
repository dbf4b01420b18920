"""Watch a pool or task from the driver: show progress, kill hanging workers, fail the call if it is stuck."""

import contextlib
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from pipeline.daemon import in_daemon_thread
from pipeline.errors import PipelineError, TransientError
from pipeline.flows.workers.board import CallStatus
from pipeline.flows.workers.check_nodes import warn_of_unusable
from pipeline.flows.workers.heartbeat import Call, Patience, open_board, patience
from pipeline.flows.workers.nodes import (
    ResourceDemand,
    addable_nodes,
    describe_resources,
    nodes_alive,
    nodes_seen,
    take_joined,
    take_lost,
)
from pipeline.flows.workers.processes import WorkerProcess, kill_process
from pipeline.flows.workers.stall import hang_message, stall_limit_s
from pipeline.log import RunningStage, announce, counted

_POLL_S = 1.0  # time between two requests of the call's status
_NODES_S = 5.0  # time between two checks of the cluster's nodes
_ANSWER_S = 10.0  # timeout for the board's answer
_KILL_S = 30.0  # timeout for a node to answer that it killed a process


class Watch:
    """Follow one call from the driver.

    The watch shows progress, and fails the call if no worker of the call runs or if processes keep dying at
    one item. A worker whose item hangs is killed: that counts as one more death at the item, and the item
    begins again.
    """

    def __init__(
        self, call: Call, task: str, demand: ResourceDemand, max_deaths: int, bar: RunningStage | None
    ) -> None:
        self._call, self._task, self._bar = call, task, bar
        self._demand, self._max_deaths = demand, max_deaths
        self._failure: PipelineError | None = None
        self._stopped = threading.Event()
        self._follow_nodes()  # a node may have been lost since the previous call
        self._last_heartbeat = time.monotonic()  # when any worker last sent a heartbeat
        self._last_room = time.monotonic()  # when the nodes last had enough room, see _check_limits
        self._had_enough_room = False  # whether all required workers fitted at some time
        self._killed: set[WorkerProcess] = set()
        # pending answers of the nodes that kill workers, and the time at which each is given up
        self._kills: dict[Any, float] = {}
        # whether a worker that was not killed here has begun an item on a node that is alive
        self._any_running = False
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise the error for which the call must be given up, if any.

        Raises:
            TransientError: for longer than cluster.patience_s no worker sent a heartbeat; one process
                after another died at an item; or for longer than cluster.wait_s there was no node with room
                for a worker, because such a node was lost or the autoscaler added none.
        """
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Stop watching."""
        self._stopped.set()
        self._thread.join()

    def poll(self) -> None:
        """Show the reports of the workers, and fail the call if it does not progress."""
        with contextlib.suppress(ray.exceptions.RayError):  # the cluster's head may be away for a moment
            allowed, self._any_running = patience(), False
            with contextlib.suppress(ray.exceptions.RayError):  # Ray restarts a board that is lost
                status = ray.get(self._call.board.status.remote(self._call.name), timeout=_ANSWER_S)
                self._handle_status(status, allowed.patience_s)
            self._check_limits(allowed)

    def _follow(self) -> None:
        while self._failure is None and not self._stopped.wait(_POLL_S):
            self.poll()
            if time.monotonic() - self._nodes_checked >= _NODES_S:
                with contextlib.suppress(ray.exceptions.RayError):  # the next poll tries again
                    self._follow_nodes()

    def _handle_status(self, status: CallStatus, patience_s: float) -> None:
        """Show messages and rows, note the last heartbeat, and kill workers whose items hang."""
        for sentence in status.messages:
            announce(sentence)
        if self._bar is not None:
            self._bar.reach(status.rows, status.note)
        if status.silent_s is not None:
            self._last_heartbeat = max(self._last_heartbeat, time.monotonic() - status.silent_s)
        limit_s = stall_limit_s(status.slowest_s, patience_s)
        for item, worker, stalled_s, silent_s in status.running_items:
            if worker.node not in self._nodes or worker in self._killed:
                continue
            if stalled_s > limit_s or silent_s > patience_s:
                announce(hang_message(f"item {item} of {self._task}", stalled_s))
                self._killed.add(worker)
                self._kills[_kill(worker)] = time.monotonic() + _KILL_S
            else:
                self._any_running = True
        self._collect_kills()

    def _collect_kills(self) -> None:
        """Restart the time of cluster.patience_s if a process was killed, since the next must start first.

        A process that was already dead does not count: Ray started its successor earlier.
        """
        for answer, deadline in list(self._kills.items()):
            answered = ray.wait([answer], timeout=0)[0]
            if answered or time.monotonic() > deadline:
                del self._kills[answer]
            with contextlib.suppress(ray.exceptions.RayError):  # its node may be lost
                was_killed = answered and ray.get(answer)
                if was_killed:
                    self._last_heartbeat = time.monotonic()

    def _check_limits(self, allowed: Patience) -> None:
        """Fail the call if room or workers are missing for too long, or an item keeps killing processes.

        Room for all required workers is waited for only once: after nodes are lost, room for one is enough.
        """
        now, nodes = time.monotonic(), [node for _, node in self._nodes.values()]
        fitting = self._demand.fit(nodes)
        self._had_enough_room |= fitting >= self._demand.workers
        if fitting and self._had_enough_room:
            self._last_room = now
        elif now - self._last_room > allowed.wait_s:
            if not fitting and self._demand.fit(nodes_seen()):
                self._fail(self._demand.lost_error(nodes, allowed.wait_s))
            else:
                self._fail(self._demand.not_added_error(nodes, allowed.wait_s))
        elif not fitting:
            self._last_heartbeat = now  # no worker can run, so patience_s starts when a node is added
        if now - self._last_heartbeat > allowed.patience_s and not (self._any_running or self._kills):
            self._fail(_no_worker_error(self._demand, allowed.patience_s))
        for item, count in self._call.start_counts().items():
            if count > self._max_deaths:  # Ray itself would restart it without limit
                self._fail(_too_many_deaths_error(f"item {item} of {self._task}", self._max_deaths))

    def _fail(self, failure: PipelineError) -> None:
        if self._failure is None:
            self._failure = failure

    def _follow_nodes(self) -> None:
        """Log lost nodes, and nodes that have joined and cannot do the work."""
        self._nodes, self._nodes_checked = nodes_alive(), time.monotonic()
        for address in take_lost(self._nodes):
            left = sum(self._demand.fit([node]) > 0 for _, node in self._nodes.values())
            others = (
                f"on the {left} that {'is' if left == 1 else 'are'} left" if left else "when a node joins"
            )
            announce(f"node {address} is lost; its unfinished work is repeated {others}")
        if joined := take_joined(self._nodes):
            asked = in_daemon_thread(lambda: warn_of_unusable(joined), "manta-joined")
            asked.add_done_callback(_announce_error)


def _announce_error(asked: Future[None]) -> None:
    if error := asked.exception():
        announce(f"warning: nodes that joined could not be asked: {type(error).__name__}: {error}")


def _kill(worker: WorkerProcess) -> Any:
    """Start a Ray task on the worker's node that kills the process: Ray cannot end a stopped process.

    Returns:
        Reference to the task's result: True if the process still existed.
    """
    on_node = NodeAffinitySchedulingStrategy(node_id=worker.node, soft=False)
    return (
        ray.remote(kill_process)
        .options(num_cpus=0, max_retries=0, scheduling_strategy=on_node)
        .remote(worker.pid, worker.start_ticks)
    )


def _too_many_deaths_error(item: str, deaths: int) -> TransientError:
    return TransientError(
        item,
        "a process that finishes it",
        f"{deaths} that died while working on it",
        "make more memory available (fewer workers by cluster.workers, a smaller encode.max_tokens), or see "
        "whether the model can be loaded (manta preflight); then run again: finished units are kept",
    )


def _no_worker_error(demand: ResourceDemand, patience_s: float) -> TransientError:
    free = ray.available_resources()
    cpus, gpus = free.get("CPU", 0), free.get("GPU", 0)
    return TransientError(
        "cluster",
        f"a running worker ({demand}) within {patience_s:g} s (cluster.patience_s)",
        f"none, with {describe_resources(cpus, gpus)} free on {counted(len(nodes_alive()), 'node')}",
        "add such nodes or end what occupies them, lower cluster.cpus_per_worker and "
        "cluster.gpus_per_worker, or free memory where CPUs are free; then run again: finished units are "
        "kept",
    )


@contextlib.contextmanager
def watch_call(
    task: str, demand: ResourceDemand, max_deaths: int, bar: RunningStage | None = None
) -> Iterator[tuple[Call, Watch]]:
    """Open a call on the board and watch it while the block runs.

    Args:
        task: class name of the task, for messages.
        demand: resources of one worker.
        max_deaths: number of processes that may die at one item.
        bar: progress bar.

    Raises:
        ConfigError: a worker fits no node: none seen in this run, and none that can be added.
    """
    nodes = [node for _, node in nodes_alive().values()]
    if not demand.fit(nodes_seen()) and not demand.fit(more := addable_nodes()):
        raise demand.too_large_error(nodes, more)
    call = Call(open_board(), uuid.uuid4().hex)
    watch = Watch(call, task, demand, max_deaths, bar)
    try:
        yield call, watch
    finally:
        watch.stop()
        call.close()
