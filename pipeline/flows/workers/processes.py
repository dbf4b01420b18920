"""Processes of this machine, identified by their start: find them, measure their CPU time, kill them."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pipeline.log import end_process


@dataclass(frozen=True)
class WorkerProcess:
    """A process of a worker, which works on an item or waits for one."""

    node: str
    """id of its node; empty for this machine"""
    pid: int
    """its process id"""
    start_ticks: int
    """its start in clock ticks since the boot of the node. It identifies the process, since process ids are
    reused"""

    @classmethod
    def current(cls, node: str = "") -> "WorkerProcess":
        """Return this process."""
        return cls.of(os.getpid(), node)

    @classmethod
    def of(cls, pid: int, node: str = "") -> "WorkerProcess":
        """Return the process with an id. Raises OSError if there is none."""
        return cls(node, pid, _read_stat(pid).start_ticks)

    def runs(self) -> bool:
        """Return whether the process, which is one of this machine, has not ended."""
        try:
            stat = _read_stat(self.pid)
        except OSError:
            return False
        return stat.start_ticks == self.start_ticks and stat.state != "Z"


def kill_process(pid: int, start_ticks: int) -> bool:
    """Kill the process if it has this start, so that no later process with its id is killed.

    Returns whether it was killed.
    """
    try:
        if _read_stat(pid).start_ticks == start_ticks:
            os.kill(pid, signal.SIGKILL)
            return True
    except OSError:  # it has ended meanwhile
        pass
    return False


def children_of(pid: int) -> list[WorkerProcess]:
    """Return the child processes of a process of this machine."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if (stat := _read_stat(int(folder.name))).parent == pid:
                found.append(WorkerProcess("", int(folder.name), stat.start_ticks))
    return found


def cpu_s(pid: int) -> float:
    """Return the CPU seconds that the process has used; 0 if it has ended."""
    try:
        return _read_stat(pid).cpu_ticks / os.sysconf("SC_CLK_TCK")
    except OSError:
        return 0.0


class _ProcessStat(NamedTuple):
    """State and parent of a process; CPU time, and start since the boot of the machine, in clock ticks."""

    state: str
    parent: int
    cpu_ticks: int
    start_ticks: int


def _read_stat(pid: int) -> _ProcessStat:
    """Read /proc/PID/stat (proc_pid_stat(5)). Raises OSError if the process has ended."""
    # The second field is the program's name in parentheses, which may contain spaces and half a character of
    # UTF-8. The fields after it are read.
    stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    state, *numbers = stat.rpartition(")")[2].split()
    parent, user_ticks, system_ticks, start_ticks = (int(numbers[field - 4]) for field in (4, 14, 15, 22))
    return _ProcessStat(state, parent, user_ticks + system_ticks, start_ticks)


@contextlib.contextmanager
def abort_on_error(find: Callable[[], Exception | None], poll_s: float) -> Iterator[None]:
    """Abort this process with the first error that `find` returns.

    Args:
        find: looks for an error; called in a thread.
        poll_s: seconds between two calls.
    """
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(poll_s):
            if (error := find()) is not None:
                end_process(error)
                return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
