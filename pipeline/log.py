"""Report the events and the progress of a run on standard error.

Progress is a bar on a terminal and plain lines elsewhere; with MANTA_LOG=json every line is a JSON object.
"""

import contextlib
import importlib.metadata
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pipeline.terminal import TerminalBar, is_terminal

T = TypeVar("T")

_EVERY_S = 10.0  # least time between two plain progress lines of a short stage
_QUIET_S = 30.0  # time without a line after which a short stage reports that it is still running
_INTERVAL_GROWTH = 0.05  # least time between two lines, as a proportion of the time that the stage has lasted
_LONGEST_INTERVAL_S = 300.0
_listeners: list[list[str]] = []
_enders: list[Callable[[Exception], None]] = []

_CONTROLS = "\x00-\x1f\x7f-\x9f"
# Marks that change the direction or the line of the following text.
_REORDERS = "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
_UNPRINTABLE = re.compile(f"[{_CONTROLS}{_REORDERS}]")


def printable(text: str) -> str:
    """Return the text for one line of a terminal.

    Control characters, escapes, line breaks and marks of text direction become U+FFFD. Ids, file names,
    column names and texts come from a corpus, whose author must not be able to move the cursor, forge a line
    or write to the clipboard.
    """
    return _UNPRINTABLE.sub("\ufffd", text)


def escaped(line: str) -> str:
    """Escape the characters that `printable` replaces. In JSON, their \\u escapes mean the same."""
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found.group()):04x}", line)


def announce(sentence: str, **fields: Any) -> None:
    """Report one event: the sentence with its fields, or with MANTA_LOG=json a JSON object on a line."""
    if os.environ.get("MANTA_LOG") == "json":
        line = json.dumps({"time": round(time.time(), 3), "event": sentence, **fields}, default=str)
    else:
        line = printable(sentence + "".join(f"  {name}={value}" for name, value in fields.items()))
    for heard in _listeners:
        heard.append(sentence)
    if not _listeners:
        print(line, file=sys.stderr, flush=True)


@contextlib.contextmanager
def listening() -> Iterator[list[str]]:
    """Yield a list to which `announce` adds this process's sentences during the block instead of printing.

    A worker sends the sentences to the driver. Its standard error is a log file, which Ray may show, too.
    """
    with _member(_listeners, []) as heard:
        yield heard


@contextlib.contextmanager
def ends_by(end: Callable[[Exception], None]) -> Iterator[None]:
    """Register `end` as a fatal-error handler of the process during the block. Any thread may trigger it.

    The last registered handler is called first. The job boundary registers the one that ends the process.
    """
    with _member(_enders, end):
        yield


@contextlib.contextmanager
def at_error(handle: Callable[[BaseException], None]) -> Iterator[None]:
    """Call `handle` with the error that ends the block, or with which a thread ends the process meanwhile."""
    try:
        with ends_by(handle):
            yield
    except BaseException as error:
        handle(error)
        raise


@contextlib.contextmanager
def _member(members: list[T], member: T) -> Iterator[T]:
    members.append(member)
    try:
        yield member
    finally:
        members.remove(member)


def end_process(error: Exception) -> None:
    """End the process with the error, from any thread. Without a handler (`ends_by`), only report it.

    A handler that fails is reported, and the others still run.
    """
    for end in reversed(_enders or [lambda error: announce(str(error))]):
        try:
            end(error)
        except Exception as failure:
            with contextlib.suppress(OSError):  # standard error is closed, or its disk is full
                announce(f"{type(failure).__name__}: {failure}")


@dataclass
class Stage:
    """One stage of a run."""

    name: str
    unit: str = "rows"
    done: int = 0
    """number of finished items, counted in `unit`"""
    seconds: float = 0.0
    """wall time"""
    note: str = ""
    """a metric to show"""


@dataclass
class Stages:
    """The finished stages of a run, in order. A call starts a stage and shows its progress."""

    finished: list[Stage] = field(default_factory=list)
    prefix: str = ""
    """text before the name of every stage"""

    def under(self, name: str) -> "Stages":
        """Return stages that are added to the same list, each with `name` before its own name."""
        return Stages(self.finished, f"{self.prefix}{name}: ")

    @contextlib.contextmanager
    def __call__(self, name: str, total: int | None = None, unit: str = "rows") -> Iterator["RunningStage"]:
        running = RunningStage(Stage(self.prefix + name, unit), total, is_terminal())
        try:
            yield running
        except BaseException:
            running.close(failed=True)
            raise
        self.finished.append(running.close())

    def seconds(self) -> dict[str, float]:
        """Return the wall time of each stage in seconds, to the millisecond."""
        return {stage.name: round(stage.seconds, 3) for stage in self.finished}


class RunningStage:
    """A running stage: its rows, rate and time left. Without a bar, it prints lines, ever more rarely."""

    def __init__(
        self, stage: Stage, total: int | None, terminal: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.stage, self.total, self._clock = stage, total, clock
        self._start = self._shown = clock()
        # Rows and time of the first report. The rate is measured from there on, without the start of workers.
        self._first: tuple[int, float] | None = None
        self._bar = TerminalBar(stage.name) if terminal else None
        self._over = threading.Event()
        if self._bar:
            self._draw(self._bar)
        else:
            announce(f"{stage.name}: starts" + (f", {self._count(total)}" if total is not None else ""))
            threading.Thread(target=self._break_silence, daemon=True).start()

    def add(self, count: int) -> None:
        """Report that `count` further rows are done."""
        self.reach(self.stage.done + count)

    def reach(self, done: int, note: str = "") -> None:
        """Report that `done` rows are done in all.

        Args:
            note: a metric to show.
        """
        self.stage.done, self.stage.note = done, note or self.stage.note
        if self._first is None and done:
            self._first = done, self._clock()
        if self._bar:
            self._draw(self._bar, note)
        elif self._clock() - self._shown >= self._interval(_EVERY_S):
            self._show()

    def expect(self, total: int) -> None:
        """Set the total, once it is known."""
        self.total = total
        if self._bar:
            self._draw(self._bar)

    def skip(self, count: int) -> None:
        """Report that an earlier run has done `count` rows, which do not count for the rate."""
        if count:
            announce(f"{self.stage.name}: {self._count(count)} from an earlier run")
            if self.total is not None:
                self.expect(self.total - count)

    def close(self, failed: bool = False) -> Stage:
        """End the stage and return it with its time."""
        self._over.set()
        self.stage.seconds = self._clock() - self._start
        if self._bar:
            self._bar.close()
        taken, done, unit = duration(self.stage.seconds), self.stage.done, self.stage.unit
        if done:
            taken = f"{self._count(done)} in {taken}, {_rate(done / max(self.stage.seconds, 1e-9))} {unit}/s"
        note = f", {self.stage.note}" if self.stage.note else ""
        announce(f"{self.stage.name}: {'stopped after' if failed else 'done,'} {taken}{note}")
        return self.stage

    def _break_silence(self) -> None:
        while not self._over.wait(max(0.0, self._shown + self._interval(_QUIET_S) - self._clock())):
            if self._clock() - self._shown >= self._interval(_QUIET_S):
                self._show()

    def _interval(self, least_s: float) -> float:
        """Return the least time between two lines, which grows with the time that the stage has lasted."""
        return min(_LONGEST_INTERVAL_S, max(least_s, _INTERVAL_GROWTH * (self._shown - self._start)))

    def _show(self) -> None:
        self._shown = now = self._clock()
        done, since_start = self.stage.done, duration(now - self._start)
        if done:
            shown = self._count(done)
            if self.total:
                shown = f"{done:,} of {self._count(self.total)} ({done / self.total:.0%})"
            facts = ", ".join(filter(None, (shown, self._time_left(), self._speed(), self.stage.note)))
        elif self.total:
            facts = f"workers are starting, {self._count(self.total)} to do, {since_start} so far"
        else:
            facts = f"running for {since_start}"
        announce(f"{self.stage.name}: {facts}")

    def _draw(self, bar: TerminalBar, note: str = "") -> None:
        shown = self._count(self.stage.done) if self.stage.done else ""
        if self.total is not None:
            shown = f"{self.stage.done:,}/{self._count(self.total)}"
        is_starting = bool(self.total) and not self.stage.done
        facts = "workers are starting" if is_starting else f"{self._speed()} {note}".strip()
        bar.show(self.stage.done, self.total, counted=shown, facts=facts, left=self._time_left())

    def _count(self, count: int) -> str:
        return counted(count, self.stage.unit.removesuffix("s"))

    def _pace(self) -> float | None:
        """Return the units per second since the first report; None before the second one."""
        if self._first is None or self.stage.done <= self._first[0] or self._clock() <= self._first[1]:
            return None
        return (self.stage.done - self._first[0]) / (self._clock() - self._first[1])

    def _time_left(self) -> str:
        pace, left = self._pace(), (self.total or 0) - self.stage.done
        return f"about {duration(left / pace)} left" if pace and left > 0 else ""

    def _speed(self) -> str:
        pace = self._pace()
        return f"{_rate(pace)} {self.stage.unit}/s" if pace else ""


def _rate(rate: float) -> str:
    # A rate below one has two digits after the point: training steps may take more than a second.
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2f}" if rate < 1 else f"{rate:.1f}"


def packages(*names: str) -> dict[str, str]:
    """Return the versions of the named packages that are installed, by name."""
    found = {}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def duration(seconds: float) -> str:
    """Return seconds as text: 4.2 s, 3 min 20 s, 2 h 5 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"


def counted(count: float, noun: str) -> str:
    """Return a count with its noun: 1 row, 2,000 rows, 0.5 GPUs."""
    return f"{count:{',' if isinstance(count, int) else 'g'}} {noun if count == 1 else noun + 's'}"


def size(count: float) -> str:
    """Return bytes as text: 812 B, 4.7 MB, 1.2 GB (powers of ten)."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
