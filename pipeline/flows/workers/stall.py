"""Detection of items that no longer progress.

Heartbeats are not enough: a hanging worker sends them as long as one of its threads runs.
"""

import time
from dataclasses import dataclass, field

from pipeline.flows.workers.processes import cpu_s
from pipeline.log import duration

# An item without progress for this many times the duration of the slowest finished item hangs.
_SLOWEST_FACTOR = 10
# Proportion of a core above which a process computes; a Ray worker that only sends heartbeats takes 0.01.
_BUSY = 0.05
# Limit of the time that one call of `advance` adds: nothing progresses while a machine is suspended.
_MAX_STEP_S = 10.0


@dataclass
class StallTimer:
    """Measure for how many seconds an item has made no progress.

    Between the first report of rows and the last one, progress is a changed number of rows. At other times,
    such as while a model is loaded, a quantizer is trained or a file is written, CPU time and any report
    count as progress, too. A transfer that is under way always counts as progress.
    """

    seconds: float = 0.0
    _rows: int = 0
    _expects_rows: bool = False

    def record_rows(self, rows: int, more: bool) -> None:
        """Record that `rows` rows are done, and whether `more` will be reported."""
        if rows != self._rows or not (more and self._expects_rows):
            self.seconds = 0.0
        self._rows, self._expects_rows = rows, more

    def record_cpu_use(self) -> None:
        """Record that the item's process used the CPU."""
        if not self._expects_rows:
            self.seconds = 0.0

    def reset(self) -> None:
        """Start again from zero, as for a transfer under way, which has timeouts of its own."""
        self.seconds = 0.0

    def advance(self, elapsed_s: float) -> float:
        """Add the time since the previous call. Returns the seconds without progress."""
        self.seconds += min(elapsed_s, _MAX_STEP_S)
        return self.seconds


@dataclass
class CpuMeter:
    """Measure whether a process computes, by its CPU time."""

    pid: int
    _cpu_s: float = 0.0
    _measured_at: float = field(default_factory=time.monotonic)

    def busy(self) -> bool:
        """Return whether the process used a noticeable part of a core since the previous call."""
        cpu_before, time_before = self._cpu_s, self._measured_at
        self._cpu_s, self._measured_at = cpu_s(self.pid), time.monotonic()
        return self._cpu_s - cpu_before > _BUSY * (self._measured_at - time_before)


def stall_limit_s(slowest_s: float, patience_s: float) -> float:
    """Return the seconds without progress after which an item counts as hanging.

    Args:
        slowest_s: seconds that the slowest finished item took.
        patience_s: least limit.
    """
    return max(_SLOWEST_FACTOR * slowest_s, patience_s)


def hang_message(item: str, stalled_s: float) -> str:
    """Return the log line for an item whose process is killed because it hangs."""
    return (
        f"{item} has shown no progress for {duration(stalled_s)}: its process is killed, and the item begins "
        "again"
    )
