"""The rule by which a claimed ordering is shown, not shown, or opposite."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["shown", "not shown", "opposite", "not run"]

RULE = (
    "An ordering is shown if the ranges of both rows over at least two seeds do not overlap, or if in every "
    "seed the 95 % interval of the paired bootstrap of the difference is above 0; opposite likewise; else it "
    "is not shown. A row without training has the same vectors with every seed; its range is that over the "
    "seeds of the sample, if the column has samples; if neither row has a range, only the bootstrap decides. "
    "With one seed, the bootstrap says nothing about others."
)


@dataclass(frozen=True)
class Comparison:
    """Values of two rows, by seed, and intervals of their difference.

    Attributes:
        above: values of the row that is claimed to be above.
        below: values of the other row.
        intervals: for each seed, the 95 % interval of `above` - `below`; empty without a paired bootstrap.
    """

    above: Sequence[float]
    below: Sequence[float]
    intervals: Sequence[tuple[float, float]] = ()

    @property
    def difference(self) -> float:
        """Difference of the means."""
        return sum(self.above) / len(self.above) - sum(self.below) / len(self.below)

    @property
    def verdict(self) -> Verdict:
        """Verdict by `RULE`."""
        if not self.above or not self.below:
            return "not run"
        if self._is_above():
            return "shown"
        return "opposite" if self._mirrored()._is_above() else "not shown"

    def _is_above(self) -> bool:
        have_seeds = min(len(self.above), len(self.below)) >= 2
        one_varies = len({*self.above}) > 1 or len({*self.below}) > 1
        if have_seeds and one_varies and min(self.above) > max(self.below):
            return True
        return bool(self.intervals) and all(low > 0 for low, _ in self.intervals)

    def _mirrored(self) -> "Comparison":
        return Comparison(self.below, self.above, [(-high, -low) for low, high in self.intervals])
