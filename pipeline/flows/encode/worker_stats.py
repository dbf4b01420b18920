"""Timings and counters of encode workers."""

from dataclasses import dataclass, fields, replace


@dataclass
class WorkerStats:
    """Seconds of a worker by activity, and counters of its encoder; logged and reported, never stored."""

    tokens: int = 0
    repeats: int = 0
    """texts that were not encoded because their window contains the same text already"""
    load_s: float = 0.0
    """time spent loading the encoder"""
    forward_s: float = 0.0
    """time spent in forward passes"""
    waiting_s: float = 0.0
    """time spent waiting for tokenized texts"""
    store_s: float = 0.0
    """time spent writing files"""
    warnings: tuple[str, ...] = ()
    """warnings from loading the encoder, each once"""

    def merge(self, other: "WorkerStats") -> "WorkerStats":
        """Return the sums, and each warning once."""
        sums = WorkerStats(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))
        return replace(sums, warnings=tuple(dict.fromkeys(sums.warnings)))

    def waiting_proportions(self) -> dict[str, float]:
        """Return the proportions of the encoding time in which workers waited for tokenizer and store.

        Returns:
            The proportions of "tokenizer" and "store"; empty if nothing was encoded.
        """
        total_s = self.forward_s + self.waiting_s + self.store_s
        return {"tokenizer": self.waiting_s / total_s, "store": self.store_s / total_s} if total_s else {}
