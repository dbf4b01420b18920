"""The driver's watch over workers: whether any runs, whether items get on, and whether processes keep dying at one of them."""

import contextlib
import threading
import time
import uuid
from collections.abc import Iterator

from pipeline.errors import PipelineError, TransientError
from pipeline.flows.board import Call, Look, Patience, open_board, patience
from pipeline.flows.room import Needs, grows, nodes_alive
from pipeline.flows.standstill import Worker, end_process, hanging, longest_s
from pipeline.log import Running, say

_LOOK_S = 1.0
_NODES_S = 5.0          # between two looks at the cluster's nodes
_ANSWER_S = 10.0        # for the board to answer


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
        self._ended: set[Worker] = set()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def check(self, late_s: float = 0.0) -> None:
        """TransientError when no worker has been heard of for longer than cluster.patience_s, or one process after another died at an item.

        ConfigError when no node that holds a worker has come within cluster.wait_s. late_s: how much later than that it is raised.
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

        with contextlib.suppress(ray.exceptions.RayError):          # a cluster's head that is lost for a moment stops no night
            allowed = patience()
            with contextlib.suppress(ray.exceptions.RayError):      # nor does a board: it comes back
                self._tell(ray.get(self._call.board.look.remote(self._call.name), timeout=_ANSWER_S), allowed.patience_s)
            self._judge(allowed)

    def _follow(self) -> None:
        while self._failure is None and not self._over.wait(_LOOK_S):
            self.look()
            if time.monotonic() - self._looked >= _NODES_S:
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
            self._heard = time.monotonic()                      # a worker that is neither lost nor ended is waited for as follows
            if still_s > longest_s(look.slowest_s, allowed_s) or silent_s > allowed_s:
                say(hanging(f"item {item} of {self._task}", still_s))
                self._ended.add(worker)
                _end(worker)

    def _judge(self, allowed: Patience) -> None:
        now, nodes = time.monotonic(), [node for _, node in self._nodes.values()]
        if self._needs.fit(nodes):
            self._had_room = now
        elif now - self._had_room > allowed.wait_s:
            self._fail(self._needs.too_large(nodes, allowed.wait_s))
        else:
            self._heard = now                                   # once a node is there, its workers have the whole patience to start
        if now - self._heard > allowed.patience_s:
            self._fail(_nobody(self._needs, allowed.patience_s))
        for item, count in self._call.begun().items():
            if count > self._deaths:                            # Ray itself would start it again without end
                self._fail(_dying(f"item {item} of {self._task}", self._deaths))

    def _fail(self, failure: PipelineError) -> None:
        if self._failure is None:
            self._failed, self._failure = time.monotonic(), failure

    def _tell_lost_nodes(self) -> None:
        there, self._looked = nodes_alive(), time.monotonic()
        for node in self._nodes.keys() - there.keys():
            say(f"node {self._nodes[node][0]} is lost; what it had not finished is done again on the {len(there)} that are left")
        self._nodes = there


def _end(worker: Worker) -> None:
    """Kill the process, from its own node; one that is stopped hears no word of Ray's. Waits for nobody."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    there = NodeAffinitySchedulingStrategy(node_id=worker.node, soft=False)
    ray.remote(end_process).options(num_cpus=0, max_retries=0, scheduling_strategy=there).remote(worker.pid, worker.born)


def _dying(item: str, deaths: int) -> TransientError:
    remedy = "look for memory that is short (fewer workers by cluster.workers, a smaller encode.max_tokens), or a model that cannot be loaded (manta preflight)"
    return TransientError(item, "a process that ends it", f"{deaths} that died at it", f"{remedy}; then run again: finished units are kept")


def _nobody(needs: Needs, allowed_s: float) -> TransientError:
    import ray

    free = ray.available_resources()
    found = f"none, with {free.get('CPU', 0):g} CPUs and {free.get('GPU', 0):g} GPUs free on {len(nodes_alive())} nodes"
    remedy = (
        "add such nodes or end what occupies them, lower cluster.cpus_per_worker and cluster.gpus_per_worker, or look for memory that is short where nodes are free; "
        "then run again: finished units are kept"
    )
    return TransientError("cluster", f"a running worker ({needs}) within {allowed_s:g} s (cluster.patience_s)", found, remedy)


@contextlib.contextmanager
def watched(task: str, needs: Needs, deaths: int, bar: Running | None = None) -> Iterator[tuple[Call, Watch]]:
    """A call on the board and the watch over it, for as long as the block runs. task, needs: what is done and what one worker of it takes.

    ConfigError at once where no node of a cluster that cannot grow holds a worker.
    """
    nodes = [node for _, node in nodes_alive().values()]
    if not needs.fit(nodes) and not grows():
        raise needs.too_large(nodes)
    call = Call(open_board(), uuid.uuid4().hex)
    watch = Watch(call, task, needs, deaths, bar)
    try:
        yield call, watch
    finally:
        watch.stop()
        call.close()
