"""The actor that collects the workers' reports, and the state of a call that the driver asks it for."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from pipeline.flows.workers.standstill import Standstill, Worker


class _Item:
    """The board's entry for an item that a worker has begun."""

    def __init__(self, worker: Worker, now: float) -> None:
        self.worker, self.began, self.standstill, self.silence = worker, now, Standstill(), Standstill()


class Board:
    """The actor that collects reports, on the driver's node.

    A call is one pool or task; an item that starts again counts from its new start.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._calls: dict[str, _State] = {}

    def close(self, call: str) -> None:
        """Forget the call."""
        self._calls.pop(call, None)

    def sign(self, call: str, item: int | None, worker: Worker, busy: bool, moving: bool = False) -> None:
        """Record a sign of life of a worker.

        Args:
            call: the pool or task it works for.
            item: its current item, if any.
            worker: the process.
            busy: whether it used the CPU.
            moving: whether it transferred bytes.
        """
        state = self._of(call)
        state.heard = self._clock()
        if item is not None:
            # a board that was restarted does not know the item
            at_work = state.at_work.setdefault(item, _Item(worker, state.heard))
            at_work.silence.compute()
            if moving:
                at_work.standstill.move()
            if busy:
                at_work.standstill.compute()

    def begin(self, call: str, item: int, worker: Worker) -> None:
        """Record that the worker has begun the item."""
        state = self._of(call)
        state.heard = self._clock()
        state.at_work[item] = _Item(worker, state.heard)

    def end(self, call: str, item: int) -> None:
        """Record that the item is done, and how long it took."""
        state = self._of(call)
        if (ended := state.at_work.pop(item, None)) is not None:
            state.slowest_s = max(state.slowest_s, self._clock() - ended.began)

    def put(self, call: str, item: int, rows: int, note: str = "", counted: bool = True) -> None:
        """Record the rows of an item that are done, a note to show, and whether more rows follow."""
        state = self._of(call)
        state.rows[item], state.note = rows, note
        if (at_work := state.at_work.get(item)) is not None:
            at_work.standstill.report(rows, counted)

    def hear(self, call: str, sentence: str) -> None:
        """Keep a sentence for the driver to print."""
        self._of(call).messages.append(sentence)

    def status(self, call: str) -> "CallStatus":
        """Return the state of the call. A board that was restarted counts from its restart."""
        state, now = self._of(call), self._clock()
        elapsed_s, state.asked = now - state.asked, now
        at_work = tuple(
            AtWork(item, each.worker, each.standstill.look(elapsed_s), each.silence.look(elapsed_s))
            for item, each in state.at_work.items()
        )
        messages, state.messages = tuple(state.messages), []
        return CallStatus(
            sum(state.rows.values()),
            None if state.heard is None else now - state.heard,
            at_work,
            state.slowest_s,
            state.note,
            messages,
        )

    def _of(self, call: str) -> "_State":
        return self._calls.setdefault(call, _State(self._clock()))


@dataclass
class _State:
    """The board's state of one call.

    Attributes:
        asked: when the driver last asked.
        heard: when a worker last gave a sign of life.
    """

    asked: float
    heard: float | None = None
    rows: dict[int, int] = field(default_factory=dict)
    at_work: dict[int, _Item] = field(default_factory=dict)
    slowest_s: float = 0.0
    note: str = ""
    messages: list[str] = field(default_factory=list)


class AtWork(NamedTuple):
    """An item that a worker has begun.

    Attributes:
        item: its number.
        worker: the process.
        still_s: seconds without progress.
        silent_s: seconds without a sign of life; a long silence means that the worker is stopped or dead.
    """

    item: int
    worker: Worker
    still_s: float
    silent_s: float


@dataclass(frozen=True)
class CallStatus:
    """The state of a call.

    Attributes:
        rows: done so far.
        silent_s: seconds since a worker gave a sign of life; None if there was none since the board started.
        at_work: items that workers have begun.
        slowest_s: seconds that the slowest finished item took.
        note: the last note.
        messages: sentences since the previous request.
    """

    rows: int
    silent_s: float | None
    at_work: tuple[AtWork, ...] = ()
    slowest_s: float = 0.0
    note: str = ""
    messages: tuple[str, ...] = ()
