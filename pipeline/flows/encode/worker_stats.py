"""Timings and counters of encode workers."""

from dataclasses import dataclass, field


@dataclass
class WorkerStats:
    """Seconds of a worker by activity, and counters of its encoder; logged and reported, never stored."""

    totals: dict[str, float] = field(default_factory=dict)
    """seconds by activity, and counters (tokens, repeats) by name"""
    warnings: tuple[str, ...] = ()
    """sentences without repetition"""

    def add(self, name: str, amount: float) -> None:
        """Add seconds of an activity, or to a counter."""
        self.totals[name] = self.totals.get(name, 0.0) + amount

    def merge(self, other: "WorkerStats") -> "WorkerStats":
        """Return the sums, and each warning once."""
        sums = {
            name: self.totals.get(name, 0.0) + other.totals.get(name, 0.0)
            for name in {**self.totals, **other.totals}
        }
        return WorkerStats(sums, tuple(dict.fromkeys(self.warnings + other.warnings)))

    def waiting_proportions(self) -> dict[str, float]:
        """Return the proportions of the encoding time in which workers waited for tokenizer and store.

        Returns:
            The proportions by what was waited for; empty if nothing was encoded.
        """
        waiting_s = {"tokenizer": self.totals.get("waiting_s", 0.0), "store": self.totals.get("store", 0.0)}
        total_s = self.totals.get("forward_s", 0.0) + sum(waiting_s.values())
        return {name: seconds / total_s for name, seconds in waiting_s.items()} if total_s else {}
