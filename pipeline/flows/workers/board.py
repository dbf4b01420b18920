"""The actor that collects the workers' reports, and the status of a call, which the driver requests.

A call is one pool or one task.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from pipeline.flows.workers.processes import WorkerProcess
from pipeline.flows.workers.stall import StallTimer

_SLOW_FACTOR = 2.0  # an item is slow after so many times the median duration of the finished items
_MIN_SLOW_S = 10.0  # an item is not slow earlier


class _Item:
    """The board's entry for an item that a worker has begun.

    Attributes:
        worker: the process that last began the item or sent a heartbeat for it.
        began: time at which the item was begun, by the clock of the board.
        stall: seconds without progress.
        silence: seconds without a heartbeat.
    """

    def __init__(self, worker: WorkerProcess, now: float) -> None:
        self.worker, self.began = worker, now
        self.stall, self.silence = StallTimer(), StallTimer()


class Board:
    """The actor that collects reports, on the driver's node.

    The times of an item that is begun again count from its new start.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._calls: dict[str, _CallState] = {}

    def close(self, call: str) -> None:
        """Forget the call."""
        self._calls.pop(call, None)

    def record_heartbeat(
        self, call: str, item: int | None, worker: WorkerProcess, busy: bool, transferred: bool = False
    ) -> None:
        """Record a heartbeat of a worker.

        Args:
            call: the pool or task that the worker belongs to.
            item: the worker's current item, if any.
            worker: the worker's process.
            busy: whether the process used the CPU.
            transferred: whether the process transferred bytes.
        """
        state = self._state_of(call)
        state.last_heartbeat = self._clock()
        if item is not None:
            # a board that was restarted does not know the item
            running = state.running_items.setdefault(item, _Item(worker, state.last_heartbeat))
            running.worker = worker  # an item with a second attempt has two workers, and either may hang
            running.silence.reset()
            if transferred:
                running.stall.reset()
            if busy:
                running.stall.record_cpu_use()

    def record_start(self, call: str, item: int, worker: WorkerProcess) -> None:
        """Record that the worker has begun the item."""
        state = self._state_of(call)
        state.last_heartbeat = self._clock()
        state.running_items[item] = _Item(worker, state.last_heartbeat)
        state.begun.add(item)

    def record_end(self, call: str, item: int) -> None:
        """Record that the item is done, and how long it took."""
        state = self._state_of(call)
        if (ended := state.running_items.pop(item, None)) is not None:
            state.durations_s[item] = self._clock() - ended.began

    def claim_slow_item(self, call: str, items: int) -> "SlowItem":
        """Choose an item for a second attempt by a worker that has nothing else to do.

        Args:
            items: number of items of the call.
        """
        state = self._state_of(call)
        unfinished = items - len(state.durations_s)
        if len(state.begun) < items or unfinished == 0 or unfinished > items / 2:
            return SlowItem(None, all_begun=len(state.begun) == items, all_done=unfinished == 0)
        limit_s = max(_MIN_SLOW_S, _SLOW_FACTOR * median(state.durations_s.values()))
        for item, running in state.running_items.items():
            if item not in state.attempted_twice and self._clock() - running.began > limit_s:
                state.attempted_twice.add(item)
                return SlowItem(item)
        return SlowItem(None)

    def record_rows(self, call: str, item: int, rows: int, note: str = "", more: bool = True) -> None:
        """Record the rows of an item that are done, a note to show, and whether more rows follow."""
        state = self._state_of(call)
        state.rows[item], state.note = rows, note
        if (running := state.running_items.get(item)) is not None:
            running.stall.record_rows(rows, more)

    def add_message(self, call: str, sentence: str) -> None:
        """Keep a sentence for the driver to print."""
        self._state_of(call).messages.append(sentence)

    def status(self, call: str) -> "CallStatus":
        """Return the status of the call. A board that was restarted counts from its restart."""
        state, now = self._state_of(call), self._clock()
        elapsed_s, state.last_request = now - state.last_request, now
        running_items = tuple(
            RunningItem(item, each.worker, each.stall.advance(elapsed_s), each.silence.advance(elapsed_s))
            for item, each in state.running_items.items()
        )
        messages, state.messages = tuple(state.messages), []
        return CallStatus(
            rows=sum(state.rows.values()),
            silent_s=None if state.last_heartbeat is None else now - state.last_heartbeat,
            running_items=running_items,
            slowest_s=max(state.durations_s.values(), default=0.0),
            note=state.note,
            messages=messages,
        )

    def _state_of(self, call: str) -> "_CallState":
        return self._calls.setdefault(call, _CallState(self._clock()))


@dataclass
class _CallState:
    """The board's state of one call."""

    last_request: float
    """time of the driver's last request, by the clock of the board"""
    last_heartbeat: float | None = None
    """time of the last heartbeat of any worker"""
    rows: dict[int, int] = field(default_factory=dict)
    running_items: dict[int, _Item] = field(default_factory=dict)
    begun: set[int] = field(default_factory=set)
    durations_s: dict[int, float] = field(default_factory=dict)
    """seconds that each finished item took"""
    attempted_twice: set[int] = field(default_factory=set)
    """items that have a second attempt"""
    note: str = ""
    messages: list[str] = field(default_factory=list)


class RunningItem(NamedTuple):
    """An item that a worker has begun."""

    item: int
    """its number"""
    worker: WorkerProcess
    """the process"""
    stalled_s: float
    """seconds without progress"""
    silent_s: float
    """seconds without a heartbeat; a long silence means that the worker is stopped or dead"""


class SlowItem(NamedTuple):
    """An item that takes much longer than its peers."""

    item: int | None
    """its number; None if no item is slow"""
    all_begun: bool = True
    """whether workers have begun all items"""
    all_done: bool = False
    """whether all items are done"""


@dataclass(frozen=True)
class CallStatus:
    """The status of a call."""

    rows: int
    """number of rows done so far"""
    silent_s: float | None
    """seconds since a worker sent a heartbeat; None if there was none since the board started"""
    running_items: tuple[RunningItem, ...] = ()
    """items that workers have begun and not finished"""
    slowest_s: float = 0.0
    """seconds that the slowest finished item took"""
    note: str = ""
    """the last note"""
    messages: tuple[str, ...] = ()
    """sentences since the previous request"""
