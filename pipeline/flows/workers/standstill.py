"""Detection of items that no longer progress.

Signs of life are not enough: a hanging worker gives them as long as one of its threads runs.
"""

import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.log import duration

_SLOWER = 10  # times the slowest finished item: an item without progress for longer hangs
_BUSY = 0.05  # of a core; a Ray worker that only gives signs of life takes about 0.01
# at most that much of the time between two looks counts: nothing progresses while a machine is suspended
_MOST_S = 10.0


@dataclass(frozen=True)
class Worker:
    """The process that works on an item.

    Attributes:
        node: id of its node.
        pid: its process id.
        born: its start in clock ticks of the node, since process ids are reused.
    """

    node: str
    pid: int
    born: int

    @classmethod
    def here(cls, node: str = "") -> "Worker":
        """Return this process."""
        return cls(node, os.getpid(), _stat(os.getpid())[19])


@dataclass
class Standstill:
    """Seconds that an item has shown no progress.

    Progress is a changed number of rows, or a transfer under way. If no rows are counted, as while a model is
    loaded, a quantizer is trained or a file is written, it is CPU time, or any report.
    """

    seconds: float = 0.0
    _rows: int = 0
    _counted: bool = False

    def report(self, rows: int, counted: bool) -> None:
        """Record that `rows` rows are done. counted: whether more rows will be reported."""
        if rows != self._rows or not (counted and self._counted):
            self.seconds = 0.0
        self._rows, self._counted = rows, counted

    def compute(self) -> None:
        """Record that the item's process used the CPU."""
        if not self._counted:
            self.seconds = 0.0

    def move(self) -> None:
        """Record a keep-alive signal of the item's process: transfers have timeouts of their own."""
        self.seconds = 0.0

    def look(self, elapsed_s: float) -> float:
        """Add `elapsed_s`, the time since the previous look. Returns the seconds without progress."""
        self.seconds += min(elapsed_s, _MOST_S)
        return self.seconds


@dataclass
class Meter:
    """Measure whether a process computes, by its CPU time."""

    pid: int
    _cpu_s: float = 0.0
    _at: float = field(default_factory=time.monotonic)

    def busy(self) -> bool:
        """Return whether the process used a noticeable part of a core since the previous call."""
        before, began = self._cpu_s, self._at
        self._cpu_s, self._at = cpu_s(self.pid), time.monotonic()
        return self._cpu_s - before > _BUSY * (self._at - began)


def longest_s(slowest_s: float, patience_s: float) -> float:
    """Return the seconds without progress after which an item hangs.

    slowest_s: of the slowest finished item.
    """
    return max(_SLOWER * slowest_s, patience_s)


def hanging(item: str, still_s: float) -> str:
    """Return the log line for an item whose process is killed."""
    return (
        f"{item} has shown no progress for {duration(still_s)}: its process is ended, and the item begins "
        "again"
    )


def end_process(pid: int, born: int) -> bool:
    """Kill the process if it still is the one born then. Returns whether it was."""
    try:
        if _stat(pid)[19] == born:
            os.kill(pid, signal.SIGKILL)
            return True
    except OSError:  # it has ended meanwhile
        pass
    return False


def cpu_s(pid: int) -> float:
    """Return the CPU seconds that the process has used; 0 if it has ended."""
    try:
        fields = _stat(pid)
    except OSError:
        return 0.0
    return (fields[11] + fields[12]) / os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> list[int]:
    """Return the fields of /proc/PID/stat from field 3 on (proc_pid_stat(5)); the state as 0."""
    return [0, *map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1:])]
