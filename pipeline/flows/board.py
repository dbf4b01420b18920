"""What workers tell while they work, and the driver's watch over it: rows done, how often an item was begun, and that somebody is at work at all."""

import contextlib
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pipeline.errors import TransientError
from pipeline.log import Running, say

PATIENCE_S = 900.0      # cloud nodes with a GPU take up to ten minutes to come
_LOOK_S = 1.0
_SIGN_S = 2.0           # between two signs of life of one worker
_NODES_S = 5.0          # between two looks at the cluster's nodes


class Board:
    """An actor beside the driver. A call is one pool or task; an item that starts again counts from its new start."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s, self._life = patience_s, uuid.uuid4().hex
        self._rows: dict[str, dict[int, int]] = {}
        self._notes: dict[str, str] = {}
        self._said: dict[str, list[str]] = {}
        self._begun: dict[str, dict[int, int]] = {}
        self._heard: dict[str, float] = {}

    def expect(self, patience_s: float) -> None:
        self._patience_s = patience_s

    def open(self, call: str) -> None:
        self._rows[call], self._heard[call] = {}, time.monotonic()

    def close(self, call: str) -> None:
        self._rows.pop(call, None)
        self._notes.pop(call, None)
        self._said.pop(call, None)
        self._heard.pop(call, None)
        self._begun.pop(call, None)

    def sign(self, call: str) -> None:
        self._heard[call] = time.monotonic()

    def begin(self, call: str, item: int) -> int:
        """How often the item was begun, this time included."""
        self.sign(call)
        begun = self._begun.setdefault(call, {})
        begun[item] = begun.get(item, 0) + 1
        return begun[item]

    def end(self, call: str, item: int) -> None:
        self._begun.get(call, {}).pop(item, None)

    def put(self, call: str, item: int, rows: int, note: str = "") -> None:
        self._rows.setdefault(call, {})[item] = rows
        self._notes[call] = note

    def hear(self, call: str, sentence: str) -> None:
        self._said.setdefault(call, []).append(sentence)

    def look(self, call: str) -> "Look":
        """How the call stands. A board that was restarted counts from then, and has another `life`."""
        silent_s = time.monotonic() - self._heard.setdefault(call, time.monotonic())
        rows, begun, said = sum(self._rows.get(call, {}).values()), dict(self._begun.get(call, {})), tuple(self._said.pop(call, ()))
        return Look(self._life, rows, silent_s, self._patience_s, begun, self._notes.get(call, ""), said)


@dataclass(frozen=True)
class Look:
    """rows: done so far; silent_s: since a worker gave a sign of life; begun: how often each item that is not done yet was begun in this life of the board;
    note: what was shown of it last; said: by its workers, since the look before."""

    life: str
    rows: int
    silent_s: float
    patience_s: float
    begun: dict[int, int]
    note: str = ""
    said: tuple[str, ...] = ()


def open_board(patience_s: float | None = None) -> Any:
    """The board of this driver's connection, made where there is none; on the driver's node, since what outlives the driver is of no use.

    It lives as long as the first handle to it, which `connect` holds.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    context = ray.get_runtime_context()
    here = NodeAffinitySchedulingStrategy(node_id=context.get_node_id(), soft=True)
    options = {"name": f"manta-{context.get_job_id()}", "get_if_exists": True, "num_cpus": 0, "max_restarts": -1, "max_task_retries": -1}
    board = ray.remote(Board).options(scheduling_strategy=here, **options).remote(patience_s or PATIENCE_S)
    if patience_s is not None:
        board.expect.remote(patience_s)
    return board


@dataclass(frozen=True)
class Call:
    """One pool or task at work, as its workers know it."""

    board: Any
    name: str

    def begin(self, item: int) -> int:
        """How often the item was begun, this time included; once, where the board is lost: that fails no item."""
        import ray

        try:
            return int(ray.get(self.board.begin.remote(self.name, item)))
        except ray.exceptions.RayError:
            return 1

    def end(self, item: int) -> None:
        """The item is done. Waits for nobody."""
        import ray

        with contextlib.suppress(ray.exceptions.RayError):
            self.board.end.remote(self.name, item)

    def put(self, item: int, rows: int, note: str = "") -> None:
        """Waits for nobody; a board that is lost fails no item. note: a figure worth showing."""
        import ray

        with contextlib.suppress(ray.exceptions.RayError):
            self.board.put.remote(self.name, item, rows, note)

    def say(self, sentence: str) -> None:
        """The driver says it. Waits for nobody."""
        import ray

        with contextlib.suppress(ray.exceptions.RayError):
            self.board.hear.remote(self.name, sentence)

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

        over = threading.Event()

        def tell() -> None:
            with contextlib.suppress(ray.exceptions.RayError):
                self.board.sign.remote(self.name)
                while not over.wait(_SIGN_S):
                    self.board.sign.remote(self.name)

        threading.Thread(target=tell, daemon=True).start()
        return over


class Watch:
    """Follows one call from the driver: its progress, whether any worker of it runs, and whether processes keep dying at one item.

    The deaths are counted here, since the board may die with the workers: memory that is short takes either.
    """

    def __init__(self, call: Call, task: str, wanted: str, deaths: int, bar: Running | None) -> None:
        self._call, self._task, self._wanted, self._deaths, self._bar = call, task, wanted, deaths, bar
        self._starts: dict[int, dict[str, int]] = {}
        self._failure: TransientError | None = None
        self._over = threading.Event()
        self._nodes = _alive_nodes()
        self._looked = time.monotonic()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def check(self) -> None:
        """TransientError when no worker has been heard of for longer than cluster.patience_s, or one process after another died at an item."""
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def look(self) -> None:
        """Tell what the workers have told."""
        import ray

        with contextlib.suppress(ray.exceptions.RayError):          # a board that is lost stops no night: it comes back
            self._judge(ray.get(self._call.board.look.remote(self._call.name), timeout=10))

    def _follow(self) -> None:
        while self._failure is None and not self._over.wait(_LOOK_S):
            self.look()
            if time.monotonic() - self._looked >= _NODES_S:
                self._tell_lost_nodes()

    def _judge(self, look: Look) -> None:
        for sentence in look.said:
            say(sentence)
        if self._bar is not None:
            self._bar.reach(look.rows, look.note)
        if look.silent_s > look.patience_s:
            self._failure = _nobody(self._wanted, look.patience_s)
        for item, count in look.begun.items():
            lives = self._starts.setdefault(item, {})
            lives[look.life] = count
            if sum(lives.values()) > self._deaths:              # Ray itself would start it again without end
                self._failure = _dying(f"item {item} of {self._task}", self._deaths)

    def _tell_lost_nodes(self) -> None:
        there, self._looked = _alive_nodes(), time.monotonic()
        for node in self._nodes.keys() - there.keys():
            say(f"node {self._nodes[node]} is lost; what it had not finished is done again on the {len(there)} that are left")
        self._nodes = there


def _dying(item: str, deaths: int) -> TransientError:
    remedy = "look for memory that is short (fewer workers by cluster.workers, a smaller encode.max_tokens), or a model that cannot be loaded (manta preflight)"
    return TransientError(item, "a process that ends it", f"{deaths} that died at it", f"{remedy}; then run again: finished units are kept")


def _nobody(wanted: str, patience_s: float) -> TransientError:
    import ray

    free = ray.available_resources()
    found = f"none, with {free.get('CPU', 0):g} CPUs and {free.get('GPU', 0):g} GPUs free on {len(_alive_nodes())} nodes"
    remedy = "add such nodes or end what occupies them, or lower cluster.cpus_per_worker and cluster.gpus_per_worker; then run again: finished units are kept"
    return TransientError("cluster", f"a running worker ({wanted}) within {patience_s:g} s (cluster.patience_s)", found, remedy)


def _alive_nodes() -> dict[str, str]:
    """Address of each node that lives, by its id."""
    import ray

    return {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}


@contextlib.contextmanager
def watched(task: str, wanted: str, deaths: int, bar: Running | None = None) -> Iterator[tuple[Call, Watch]]:
    """A call on the board and the watch over it, for as long as the block runs. task, wanted: what is done and what one worker of it needs, in words."""
    import ray

    call = Call(open_board(), uuid.uuid4().hex)
    call.board.open.remote(call.name)
    watch = Watch(call, task, wanted, deaths, bar)
    try:
        yield call, watch
    finally:
        watch.stop()
        with contextlib.suppress(ray.exceptions.RayError):
            call.board.close.remote(call.name)
