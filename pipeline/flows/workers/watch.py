"""The driver's watch over workers: whether any runs, whether items get on, and whether processes keep dying at one of them."""

import contextlib
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

from pipeline.errors import PipelineError, TransientError
from pipeline.flows.workers.heartbeat import Call, Look, Patience, open_board, patience
from pipeline.flows.workers.room import Needs, addable, nodes_alive, nodes_seen
from pipeline.flows.workers.standstill import Worker, end_process, hanging, longest_s
from pipeline.log import Running, say

_LOOK_S = 1.0
_NODES_S = 5.0  # between two looks at the cluster's nodes
_ANSWER_S = 10.0  # for the board to answer
_END_S = 30.0  # for a node to say whether a process that it was to end was there


class Abandoned(Exception):
    """Whoever wanted the results of a call takes no more of them."""


class Watch:
    """Follows one call from the driver: its progress, whether any worker of it runs, whether items get on, and whether processes keep dying at one.

    A worker whose item hangs is killed: that is one more death at the item, and the item begins again.
    """

    def __init__(self, call: Call, task: str, needs: Needs, deaths: int, bar: Running | None) -> None:
        self._call, self._task, self._needs, self._deaths, self._bar = call, task, needs, deaths, bar
        self._failure: PipelineError | None = None
        self._failed = 0.0
        self._over = threading.Event()
        self._nodes = nodes_alive()
        self._looked = self._heard = self._had_room = time.monotonic()
        self._had_enough = False  # whether there was room for all workers that are demanded
        self._ended: set[Worker] = set()
        self._ending: dict[
            Any, float
        ] = {}  # what the nodes of ended workers will answer, and until when that is waited for
        self._waits = False  # whether a worker on a living node has an item in hand and is not ended
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def check(self, late_s: float = 0.0) -> None:
        """TransientError when no worker has been heard of for longer than cluster.patience_s, or one process after another died at an item.

        So it is when no node holds a worker for longer than cluster.wait_s: such a node was lost, or the autoscaler adds none.
        late_s: how much later than that it is raised.
        """
        if self._failure is not None and time.monotonic() - self._failed >= late_s:
            raise self._failure
        if self._over.is_set() and self._failure is None:
            raise Abandoned

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def look(self) -> None:
        """Tell what the workers have told, and judge how the call stands."""
        import ray

        with contextlib.suppress(
            ray.exceptions.RayError
        ):  # a cluster's head that is lost for a moment stops no night
            allowed, self._waits = patience(), False
            with contextlib.suppress(ray.exceptions.RayError):  # nor does a board: it comes back
                self._tell(
                    ray.get(self._call.board.look.remote(self._call.name), timeout=_ANSWER_S),
                    allowed.patience_s,
                )
            self._judge(allowed)

    def _follow(self) -> None:
        import ray

        while self._failure is None and not self._over.wait(_LOOK_S):
            self.look()
            if time.monotonic() - self._looked >= _NODES_S:
                with contextlib.suppress(ray.exceptions.RayError):  # they are looked at again
                    self._tell_lost_nodes()

    def _tell(self, look: Look, allowed_s: float) -> None:
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
        self._hear_of_ended()

    def _hear_of_ended(self) -> None:
        """Give the worker that follows a stopped one the whole patience to start. One that was dead already has been waited for: Ray replaces it at once, if it can."""
        import ray

        for answer, until in list(self._ending.items()):
            there = ray.wait([answer], timeout=0)[0]
            if there or time.monotonic() > until:
                del self._ending[answer]
            with contextlib.suppress(ray.exceptions.RayError):  # its node is lost
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
            self._heard = now  # once a node is there, its workers have the whole patience to start
        if now - self._heard > allowed.patience_s and not (self._waits or self._ending):
            self._fail(_nobody(self._needs, allowed.patience_s))
        for item, count in self._call.begun().items():
            if count > self._deaths:  # Ray itself would start it again without end
                self._fail(_dying(f"item {item} of {self._task}", self._deaths))

    def _fail(self, failure: PipelineError) -> None:
        if self._failure is None:
            self._failed, self._failure = time.monotonic(), failure

    def _tell_lost_nodes(self) -> None:
        there, self._looked = nodes_alive(), time.monotonic()
        for node in self._nodes.keys() - there.keys():
            say(
                f"node {self._nodes[node][0]} is lost; what it had not finished is done again on the {len(there)} that are left"
            )
        self._nodes = there


def _end(worker: Worker) -> Any:
    """Kill the process, from its own node; one that is stopped hears no word of Ray's. Waits for nobody; the node will answer whether it was there."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    there = NodeAffinitySchedulingStrategy(node_id=worker.node, soft=False)
    return (
        ray.remote(end_process)
        .options(num_cpus=0, max_retries=0, scheduling_strategy=there)
        .remote(worker.pid, worker.born)
    )


def _dying(item: str, deaths: int) -> TransientError:
    remedy = "look for memory that is short (fewer workers by cluster.workers, a smaller encode.max_tokens), or a model that cannot be loaded (manta preflight)"
    return TransientError(
        item,
        "a process that ends it",
        f"{deaths} that died at it",
        f"{remedy}; then run again: finished units are kept",
    )


def _nobody(needs: Needs, allowed_s: float) -> TransientError:
    import ray

    free = ray.available_resources()
    found = f"none, with {free.get('CPU', 0):g} CPUs and {free.get('GPU', 0):g} GPUs free on {len(nodes_alive())} nodes"
    remedy = (
        "add such nodes or end what occupies them, lower cluster.cpus_per_worker and cluster.gpus_per_worker, or look for memory that is short where nodes are free; "
        "then run again: finished units are kept"
    )
    return TransientError(
        "cluster", f"a running worker ({needs}) within {allowed_s:g} s (cluster.patience_s)", found, remedy
    )


@contextlib.contextmanager
def watched(task: str, needs: Needs, deaths: int, bar: Running | None = None) -> Iterator[tuple[Call, Watch]]:
    """A call on the board and the watch over it, for as long as the block runs. task, needs: what is done and what one worker of it takes.

    ConfigError at once where a worker fits no node: neither one that is there or was earlier in this run, nor one to be added.
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
