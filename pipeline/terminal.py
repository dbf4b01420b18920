"""The progress bar of a stage on a terminal."""

import os
import sys


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
        """Draw the bar at `done` of `total`, beside two texts, the time so far and the time left."""
        self._progress.update(
            self._task, completed=done, total=total, counted=counted, facts=facts, left=left
        )

    def close(self) -> None:
        """Remove the bar."""
        self._progress.stop()
