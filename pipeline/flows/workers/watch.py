"""The driver's watch over workers: whether one runs, items progress, and no item keeps killing processes."""

import contextlib
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

from pipeline.errors import PipelineError, TransientError
from pipeline.flows.workers.board import Look
from pipeline.flows.workers.heartbeat import Call, Patience, open_board, patience
from pipeline.flows.workers.room import Needs, addable, nodes_alive, nodes_seen
from pipeline.flows.workers.standstill import Worker, end_process, hanging, longest_s
from pipeline.log import Running, say

_LOOK_S = 1.0
_NODES_S = 5.0  # between two looks at the cluster's nodes
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
        self._looked = self._heard = self._had_room = time.monotonic()
        self._had_enough = False  # whether there was room for all demanded workers
        self._ended: set[Worker] = set()
        # pending answers of the nodes that kill workers, and the time at which each is given up
        self._ending: dict[Any, float] = {}
        self._waits = False  # whether a worker on a living node, not killed by us, has begun an item
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def check(self, late_s: float = 0.0) -> None:
        """Raise the error for which the call is to be given up, if any.

        Args:
            late_s: delay from the failure to the error.

        Raises:
            TransientError: no sign of life of any worker for longer than cluster.patience_s; one process
                after another died at an item; or no node has held a worker for longer than cluster.wait_s, as
                one was lost or the autoscaler added none.
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

    def look(self) -> None:
        """Show what the workers reported, and check that the call progresses."""
        import ray

        with contextlib.suppress(ray.exceptions.RayError):  # the cluster's head may be away for a moment
            allowed, self._waits = patience(), False
            with contextlib.suppress(ray.exceptions.RayError):  # the board restarts when it is lost
                look = ray.get(self._call.board.look.remote(self._call.name), timeout=_ANSWER_S)
                self._show(look, allowed.patience_s)
            self._judge(allowed)

    def _follow(self) -> None:
        import ray

        while self._failure is None and not self._over.wait(_LOOK_S):
            self.look()
            if time.monotonic() - self._looked >= _NODES_S:
                with contextlib.suppress(ray.exceptions.RayError):  # the next look tries again
                    self._report_lost_nodes()

    def _show(self, look: Look, allowed_s: float) -> None:
        for sentence in look.said:
            say(sentence)
        if self._bar is not None:
            self._bar.reach(look.rows, look.note)
        if look.silent_s is not None:
            self._heard = max(self._heard, time.monotonic() - look.silent_s)
        for item, worker, still_s, silent_s in look.at_work:
            if worker.node not in self._nodes or worker in self._ended:
                continue
            if still_s > longest_s(look.slowest_s, allowed_s) or silent_s > allowed_s:
                say(hanging(f"item {item} of {self._task}", still_s))
                self._ended.add(worker)
                self._ending[_end(worker)] = time.monotonic() + _END_S
            else:
                self._waits = True
        self._restart_patience()

    def _restart_patience(self) -> None:
        """Give the successor of a killed worker the whole patience to start.

        A worker that was already dead has been waited for: Ray replaces it at once, if it can.
        """
        import ray

        for answer, until in list(self._ending.items()):
            there = ray.wait([answer], timeout=0)[0]
            if there or time.monotonic() > until:
                del self._ending[answer]
            with contextlib.suppress(ray.exceptions.RayError):  # its node may be lost
                if there and ray.get(answer):
                    self._heard = time.monotonic()

    def _judge(self, allowed: Patience) -> None:
        now, nodes = time.monotonic(), [node for _, node in self._nodes.values()]
        room = self._needs.fit(nodes)
        self._had_enough |= room >= self._needs.workers
        if room and self._had_enough:
            self._had_room = now
        elif now - self._had_room > allowed.wait_s:
            lost = not room and self._needs.fit(nodes_seen())
            self._fail((self._needs.lost if lost else self._needs.none_came)(nodes, allowed.wait_s))
        elif not room:
            self._heard = now  # once a node has come, its workers get the whole patience to start
        if now - self._heard > allowed.patience_s and not (self._waits or self._ending):
            self._fail(_nobody(self._needs, allowed.patience_s))
        for item, count in self._call.begun().items():
            if count > self._deaths:  # Ray itself would restart it without limit
                self._fail(_dying(f"item {item} of {self._task}", self._deaths))

    def _fail(self, failure: PipelineError) -> None:
        if self._failure is None:
            self._failed, self._failure = time.monotonic(), failure

    def _report_lost_nodes(self) -> None:
        there, self._looked = nodes_alive(), time.monotonic()
        for node in self._nodes.keys() - there.keys():
            address = self._nodes[node][0]
            say(f"node {address} is lost; its unfinished work is repeated on the {len(there)} that are left")
        self._nodes = there


def _end(worker: Worker) -> Any:
    """Kill the process, by a task on its node, since a stopped process ignores Ray.

    Returns without waiting a reference to whether the process was still there.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    there = NodeAffinitySchedulingStrategy(node_id=worker.node, soft=False)
    return (
        ray.remote(end_process)
        .options(num_cpus=0, max_retries=0, scheduling_strategy=there)
        .remote(worker.pid, worker.born)
    )


def _dying(item: str, deaths: int) -> TransientError:
    remedy = (
        "free memory (fewer workers by cluster.workers, a smaller encode.max_tokens), or see whether the "
        "model can be loaded (manta preflight); then run again: finished units are kept"
    )
    return TransientError(item, "a process that finishes it", f"{deaths} that died at it", remedy)


def _nobody(needs: Needs, allowed_s: float) -> TransientError:
    import ray

    free = ray.available_resources()
    cpus, gpus = free.get("CPU", 0), free.get("GPU", 0)
    found = f"none, with {cpus:g} CPUs and {gpus:g} GPUs free on {len(nodes_alive())} nodes"
    remedy = (
        "add such nodes or end what occupies them, lower cluster.cpus_per_worker and "
        "cluster.gpus_per_worker, or free memory where CPUs are free; then run again: finished units are kept"
    )
    return TransientError(
        "cluster", f"a running worker ({needs}) within {allowed_s:g} s (cluster.patience_s)", found, remedy
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
