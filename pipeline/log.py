"""Events and progress of a run, on standard error.

A bar on a terminal, plain lines elsewhere, JSON on demand.
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
from typing import Any

_EVERY_S = 10.0  # between two plain progress lines
_QUIET_S = 30.0  # after which a stage says that it is still at work
_listeners: list[list[str]] = []
_enders: list[Callable[[Exception], None]] = []


_CONTROLS = "\x00-\x1f\x7f-\x9f"
# marks that change the direction or the line of what follows
_REORDERS = "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
_UNPRINTABLE = re.compile(f"[{_CONTROLS}{_REORDERS}]")


def printable(text: str) -> str:
    """The text for one line of a terminal: control characters, escapes, line breaks and marks of direction
    become U+FFFD.

    Ids, file names, column names and texts come from a corpus, whose author may not move the cursor, forge a
    line or write to the clipboard.
    """
    return _UNPRINTABLE.sub("\ufffd", text)


def escaped(line: str) -> str:
    """A line of JSON with the same characters as \\u escapes, so that it still means the same."""
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found.group()):04x}", line)


def say(sentence: str, **fields: Any) -> None:
    """One event. With MANTA_LOG=json a JSON object per line, else the sentence with its fields behind."""
    if os.environ.get("MANTA_LOG") == "json":
        line = json.dumps({"time": round(time.time(), 3), "event": sentence, **fields}, default=str)
    else:
        line = printable(sentence + "".join(f"  {name}={value}" for name, value in fields.items()))
    for heard in _listeners:
        heard.append(sentence)
    print(line, file=sys.stderr, flush=True)


@contextlib.contextmanager
def listening() -> Iterator[list[str]]:
    """The sentences that are said in this process while the block runs: a worker's go to its own log file, so
    it sends them along.
    """
    heard: list[str] = []
    _listeners.append(heard)
    try:
        yield heard
    finally:
        _listeners.remove(heard)


@contextlib.contextmanager
def ends_by(end: Callable[[Exception], None]) -> Iterator[None]:
    """While the block runs, `end` is how this process tells of an error and ends, whatever its threads are
    at.
    """
    _enders.append(end)
    try:
        yield
    finally:
        _enders.remove(end)


def give_up(error: Exception) -> None:
    """End the process with the error, from any thread; where nobody has said how (`ends_by`), it is only
    said.
    """
    for end in _enders or [lambda error: say(str(error))]:
        end(error)


@dataclass
class Stage:
    """One finished stage. seconds: wall time; done: rows (or what `unit` says); note: a figure worth showing."""

    name: str
    unit: str = "rows"
    done: int = 0
    seconds: float = 0.0
    note: str = ""


@dataclass
class Stages:
    """The stages of a run, in order, with their times; shows the progress of each while it runs."""

    finished: list[Stage] = field(default_factory=list)
    prefix: str = ""
    """before every name"""

    def under(self, name: str) -> "Stages":
        """The same run, whose next stages belong to something larger of that name."""
        return Stages(self.finished, f"{self.prefix}{name}: ")

    @contextlib.contextmanager
    def __call__(self, name: str, total: int | None = None, unit: str = "rows") -> Iterator["Running"]:
        running = Running(Stage(self.prefix + name, unit), total, _terminal())
        try:
            yield running
        except BaseException:
            running.close(failed=True)
            raise
        self.finished.append(running.close())

    def seconds(self) -> dict[str, float]:
        """Wall time by stage, to the millisecond."""
        return {stage.name: round(stage.seconds, 3) for stage in self.finished}


class Running:
    """A stage at work: rows, rate and time left.

    It is never silent for long, whether anything is told to it or not.
    """

    def __init__(
        self, stage: Stage, total: int | None, terminal: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.stage, self.total, self._clock = stage, total, clock
        self._start = self._shown = clock()
        self._pace = _Pace()
        self._bar = _TerminalBar(stage, total) if terminal else None
        self._over = threading.Event()
        if not terminal:
            say(f"{stage.name}: starts" + (f", {total:,} {stage.unit}" if total is not None else ""))
            threading.Thread(target=self._break_silence, daemon=True).start()

    def add(self, count: int) -> None:
        """`count` more are done."""
        self.reach(self.stage.done + count)

    def reach(self, done: int, note: str = "") -> None:
        """`done` are done in all. note: a figure worth showing."""
        self.stage.done, self.stage.note = done, note or self.stage.note
        self._pace.reach(done, self._clock())
        if self._bar:
            self._bar.update(self.stage.done, f"{self._speed()} {note}".strip())
        elif self._clock() - self._shown >= _EVERY_S:
            self._show()

    def expect(self, total: int) -> None:
        """The total, once it is known."""
        self.total = total
        if self._bar:
            self._bar.expect(total)

    def skip(self, count: int) -> None:
        """`count` were done by an earlier run: they count as done and not for the rate."""
        if count:
            say(f"{self.stage.name}: {count:,} {self.stage.unit} are there already")
            self.total = None if self.total is None else self.total - count
            if self._bar and self.total is not None:
                self._bar.expect(self.total)

    def close(self, failed: bool = False) -> Stage:
        self._over.set()
        self.stage.seconds = self._clock() - self._start
        if self._bar:
            self._bar.close()
        rate = (
            f", {_rate(self.stage.done / max(self.stage.seconds, 1e-9))} {self.stage.unit}/s"
            if self.stage.done
            else ""
        )
        note = f", {self.stage.note}" if self.stage.note else ""
        done = f" {self.stage.done:,} {self.stage.unit} in" if self.stage.done else ""
        say(
            f"{self.stage.name}: {'stopped after' if failed else 'done,'}{done} "
            f"{duration(self.stage.seconds)}{rate}{note}"
        )
        return self.stage

    def _break_silence(self) -> None:
        while not self._over.wait(max(0.0, self._shown + _QUIET_S - self._clock())):
            if self._clock() - self._shown >= _QUIET_S:
                self._show()

    def _show(self) -> None:
        self._shown = self._clock()
        say(f"{self.stage.name}: {self._facts()}")

    def _facts(self) -> str:
        done, unit, at_it = self.stage.done, self.stage.unit, duration(self._clock() - self._start)
        if not done:
            return (
                f"workers are starting, {self.total:,} {unit} to do, {at_it} so far"
                if self.total
                else f"at work for {at_it}"
            )
        counted = f"{done:,} {unit}"
        if self.total:
            counted = f"{done:,} of {self.total:,} {unit} ({done / self.total:.0%})"
        return ", ".join(filter(None, (counted, self._time_left(), self._speed(), self.stage.note)))

    def _time_left(self) -> str:
        """Estimated time left; "" before the pace is known and at the end."""
        rate, left = self._pace.rate(self.stage.done, self._clock()), (self.total or 0) - self.stage.done
        return f"about {duration(left / rate)} left" if rate and left > 0 else ""

    def _speed(self) -> str:
        """Pace in the stage's unit per second; "" before it is known."""
        rate = self._pace.rate(self.stage.done, self._clock())
        return f"{_rate(rate)} {self.stage.unit}/s" if rate else ""


class _Pace:
    """The pace of a stage since its first rows.

    The start of workers comes once, so it says nothing of the time left.
    """

    def __init__(self) -> None:
        self._first: tuple[int, float] | None = None

    def reach(self, done: int, now: float) -> None:
        if self._first is None and done:
            self._first = done, now

    def rate(self, done: int, now: float) -> float | None:
        """Per second; None before anything was done after the first rows."""
        if self._first is None or done <= self._first[0] or now <= self._first[1]:
            return None
        return (done - self._first[0]) / (now - self._first[1])


class _TerminalBar:
    """The line of a stage on a terminal. A stage without a total shows its count once there is one."""

    def __init__(self, stage: Stage, total: int | None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description:>8}"),
            BarColumn(),
            TextColumn("{task.fields[counted]}"),
            TextColumn("{task.fields[facts]}"),
        )
        self._progress = Progress(
            *columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True), transient=True
        )
        self._done, self._total, self._unit = 0, total, stage.unit
        self._task = self._progress.add_task(stage.name, total=total, counted=self._counted(), facts="")
        self._progress.start()

    def update(self, done: int, facts: str = "") -> None:
        self._done = done
        self._progress.update(self._task, completed=done, counted=self._counted(), facts=facts)

    def expect(self, total: int) -> None:
        self._total = total
        self._progress.update(self._task, total=total, counted=self._counted())

    def close(self) -> None:
        self._progress.stop()

    def _counted(self) -> str:
        if self._total is not None:
            return f"{self._done:,}/{self._total:,} {self._unit}"
        return f"{self._done:,} {self._unit}" if self._done else ""


def _rate(rate: float) -> str:
    """Training steps come at less than one a second."""
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2f}" if rate < 1 else f"{rate:.1f}"


def packages(*names: str) -> dict[str, str]:
    """Versions of those packages that are installed here."""
    found = {}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def duration(seconds: float) -> str:
    """Seconds as a person says them: 4.2 s, 3 min 20 s, 2 h 5 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"


def size(count: float) -> str:
    """Bytes as a person says them: 812 B, 4.7 MB, 1.2 GB (powers of ten)."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def _terminal() -> bool:
    return sys.stderr.isatty() and os.environ.get("MANTA_LOG") != "json" and os.environ.get("TERM") != "dumb"
