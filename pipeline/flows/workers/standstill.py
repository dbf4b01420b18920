"""Whether an item at work gets on. Signs of life say nothing: a worker that hangs gives them for as long as one of its threads runs."""

import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.log import duration

_SLOWER = 10  # times the slowest item so far: an item that takes longer than that hangs
_BUSY = 0.05  # of a core; a worker of Ray that only gives signs of life takes about 0.01
_MOST_S = 10.0  # of the time between two looks that counts: nobody looks while a machine is suspended, and no worker gets on then


@dataclass(frozen=True)
class Worker:
    """The process that an item is at work in. born: when it began, in ticks of its node: a process id alone is given out again."""

    node: str
    pid: int
    born: int

    @classmethod
    def here(cls, node: str = "") -> "Worker":
        """This process."""
        return cls(node, os.getpid(), _stat(os.getpid())[19])


@dataclass
class Standstill:
    """How long an item has shown no progress, by the looks at it.

    Progress is another number of rows, or a transfer under way. Where no rows are counted, as while a model is loaded, a quantizer is trained or a file is written,
    it is CPU time, or whatever is told.
    """

    seconds: float = 0.0
    _rows: int = 0
    _counted: bool = False

    def tell(self, rows: int, counted: bool) -> None:
        """So many rows are done. counted: whether more follow that will be told."""
        if rows != self._rows or not (counted and self._counted):
            self.seconds = 0.0
        self._rows, self._counted = rows, counted

    def compute(self) -> None:
        """The item's process was busy since it was last asked."""
        if not self._counted:
            self.seconds = 0.0

    def move(self) -> None:
        """The item's process gave a sign of headway since it was last asked, whatever it counts: transfers end by themselves."""
        self.seconds = 0.0

    def look(self, elapsed_s: float) -> float:
        """Seconds without progress, `elapsed_s` after the look before."""
        self.seconds += min(elapsed_s, _MOST_S)
        return self.seconds


@dataclass
class Meter:
    """Tells whether a process computes, by its CPU time."""

    pid: int
    _cpu_s: float = 0.0
    _at: float = field(default_factory=time.monotonic)

    def busy(self) -> bool:
        """Whether the process took a noticeable part of a core since it was last asked; one that is gone did not."""
        before, began = self._cpu_s, self._at
        self._cpu_s, self._at = cpu_s(self.pid), time.monotonic()
        return self._cpu_s - before > _BUSY * (self._at - began)


def longest_s(slowest_s: float, patience_s: float) -> float:
    """Seconds without progress after which an item hangs. slowest_s: of the slowest item that is done."""
    return max(_SLOWER * slowest_s, patience_s)


def hanging(item: str, still_s: float) -> str:
    """The sentence for an item whose process is killed."""
    return f"{item} has shown no progress for {duration(still_s)}: its process is ended, and the item begins again"


def end_process(pid: int, born: int) -> bool:
    """Kill the process, if it is still the one that was meant. Whether it was."""
    try:
        if _stat(pid)[19] == born:
            os.kill(pid, signal.SIGKILL)
            return True
    except OSError:  # it has ended meanwhile
        pass
    return False


def cpu_s(pid: int) -> float:
    """CPU seconds that the process has taken; 0 for one that is gone."""
    try:
        fields = _stat(pid)
    except OSError:
        return 0.0
    return (fields[11] + fields[12]) / os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> list[int]:
    """What Linux tells of a process behind its name (proc_pid_stat(5), from field 3 on); its state as 0."""
    return [0, *map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1:])]
