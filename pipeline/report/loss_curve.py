"""Compare the metrics at the start of a training with those at its end."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.train.metrics_line import MetricsLine

_END_PROPORTION = 0.1  # proportion of the records that is averaged at each end, because single steps vary
_MIN_RECORDS = 6  # the fewest records from which a rising loss is reported
_STANDARD_ERRORS = 3.0  # report a rise larger than this many standard errors

# Label, and the direction in which the metric is better.
_METRICS = {
    "loss": ("loss", "lower"),
    "positive_cosine": ("cosine of positives: two views of one text, or a pair", "higher"),
    "negative_cosine": ("cosine of negatives: views of different texts", "lower"),
    "alignment": ("alignment: squared distance of positives", "lower"),
    "uniformity": ("uniformity: how evenly all texts are spread", "lower"),
}
_SAME_ROWS_METRICS = {
    "loss": _METRICS["loss"],  # listed before retrieval, because pages show the metrics in this order
    "retrieval": ("retrieval: rows whose positive is the nearest of the batch, in percent", "higher"),
    **_METRICS,
}
_PAIR_METRICS = ("retrieval", "positive_cosine", "alignment")  # metrics of the two views of a text
_EQUAL_VIEWS = 1e-6  # squared distance of two views that differ by rounding only


@dataclass(frozen=True)
class MetricChange:
    """A metric at the start and at the end of a training."""

    label: str
    """name of the metric, or name and explanation separated by a colon"""
    start: float
    """value at the start"""
    end: float
    """value at the end"""
    better_direction: str
    """"lower" or "higher"."""

    @property
    def name(self) -> str:
        """Name without the explanation."""
        return self.label.partition(":")[0]

    @property
    def is_better(self) -> bool:
        """True if the end is better than the start."""
        return self.end < self.start if self.better_direction == "lower" else self.end > self.start


def changes_over_steps(lines: Sequence[MetricsLine]) -> list[MetricChange]:
    """Average each metric over the first and the last tenth of its records, if it has two or more records."""
    changes = []
    for name, (label, direction) in _METRICS.items():
        values = _values(lines, name)
        if len(values) > 1:
            start, end = _first_and_last(values, _END_PROPORTION)
            changes.append(MetricChange(label, statistics.fmean(start), statistics.fmean(end), direction))
    return changes


def changes_on_same_rows(lines: Sequence[MetricsLine]) -> list[MetricChange]:
    """Compare the metrics of the same rows before the first step and after the last; [] unless both exist.

    If the two views of each text are equal, as without dropout, metrics of their distance are left out.
    """
    lines_with_same_rows = [line for line in lines if line.same_rows]
    if len(lines_with_same_rows) < 2 or lines_with_same_rows[0].step:
        return []
    start, end = lines_with_same_rows[0].same_rows, lines_with_same_rows[-1].same_rows
    distance = max(start.get("alignment", 1.0), end.get("alignment", 1.0))
    return [
        MetricChange(label, start[name], end[name], direction)
        for name, (label, direction) in _SAME_ROWS_METRICS.items()
        if name in start and name in end and not (distance < _EQUAL_VIEWS and name in _PAIR_METRICS)
    ]


def find_rising_loss(lines: Sequence[MetricsLine]) -> tuple[float, float] | None:
    """Return the mean loss of the first and the last third of the records; None unless it rises clearly."""
    values = _values(lines, "loss")
    if len(values) < _MIN_RECORDS:
        return None
    start, end = _first_and_last(values, 1 / 3)
    error = math.sqrt(statistics.variance(start) / len(start) + statistics.variance(end) / len(end))
    first, last = statistics.fmean(start), statistics.fmean(end)
    least_rise = max(_STANDARD_ERRORS * error, 0.01 * abs(first))
    return (first, last) if last - first > least_rise else None


def _first_and_last(values: Sequence[float], proportion: float) -> tuple[Sequence[float], Sequence[float]]:
    """Return the first and the last `proportion` of the values, at least one value each."""
    size = max(1, round(proportion * len(values)))
    return values[:size], values[-size:]


def _values(lines: Sequence[MetricsLine], name: str) -> list[float]:
    return [value for line in lines if (value := getattr(line, name)) is not None]
