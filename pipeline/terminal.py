"""Standard streams, which may be closed or full, and the progress bar of a stage on a terminal."""

import contextlib
import io
import os
import sys
from typing import Any


class _LosesText(io.FileIO):
    """A file that ignores errors of writing, such as a full disk or a reader that is gone."""

    def write(self, data: Any, /) -> int:
        with contextlib.suppress(OSError):
            super().write(data)
        return len(data)


def tolerate_lost_messages() -> None:
    """Let this process go on if standard error cannot be written to: messages are lost, work is not."""
    stream = io.BufferedWriter(_LosesText(2, "w", closefd=False))
    sys.stderr = io.TextIOWrapper(stream, "utf-8", "backslashreplace", line_buffering=True)


def open_missing_streams() -> None:
    """Open /dev/null for each standard stream that is closed, before another file takes its number."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number
    if sys.stdout is None:
        sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), "utf-8")


def is_terminal() -> bool:
    """Return whether standard error is a terminal on which a bar may be drawn."""
    plain = os.environ.get("MANTA_LOG") == "json" or os.environ.get("TERM") == "dumb"
    return sys.stderr.isatty() and not plain


class TerminalBar:
    """One line with the name of a stage, a bar, its counts and its times."""

    def __init__(self, name: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._progress = Progress(
            TextColumn("{task.description:>8}"),
            BarColumn(),
            TextColumn("{task.fields[counted]}"),
            TextColumn("{task.fields[facts]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._progress.add_task(name, total=None, counted="", facts="", left="")
        self._progress.start()

    def show(self, done: int, total: int | None, counted: str, facts: str, left: str) -> None:
        """Draw the bar at `done` of `total`, with the texts `counted`, `facts` and `left` beside it."""
        self._progress.update(
            self._task, completed=done, total=total, counted=counted, facts=facts, left=left
        )

    def close(self) -> None:
        """Remove the bar."""
        self._progress.stop()
