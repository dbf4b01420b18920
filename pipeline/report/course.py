"""Differences between the metrics at the start and at the end of a training."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.train.metrics_line import MetricsLine

_PART = 0.1  # of the records at each end are averaged, because single steps vary
_MIN_RECORDS = 6  # to detect that a loss rises
_STANDARD_ERRORS = 3.0  # by which a loss has to rise

_MEASURES = {
    "loss": ("loss", "lower"),
    "positive_cosine": ("cosine of positives: two views of one text, or a pair", "higher"),
    "negative_cosine": ("cosine of negatives: views of different texts", "lower"),
    "alignment": ("alignment: squared distance of positives", "lower"),
    "uniformity": ("uniformity: how evenly all texts are spread", "lower"),
}
_ON_SAME_ROWS = {
    "loss": ("loss", "lower"),
    "retrieval": ("retrieval: rows whose positive is the nearest of the batch, in percent", "higher"),
    **_MEASURES,
}
_OF_VIEWS = ("retrieval", "positive_cosine", "alignment")
_ONE_VECTOR = 1e-6  # squared distance of two views up to rounding


@dataclass(frozen=True)
class Ends:
    """A metric at the start and at the end of a training.

    Attributes:
        words: name and explanation, separated by a colon.
        start: value at the start.
        end: value at the end.
        good: "lower" or "higher".
    """

    words: str
    start: float
    end: float
    good: str

    @property
    def name(self) -> str:
        """Name without the explanation."""
        return self.words.partition(":")[0]

    @property
    def better(self) -> bool:
        """True if the end is better than the start."""
        return self.end < self.start if self.good == "lower" else self.end > self.start


def ends(lines: Sequence[MetricsLine]) -> list[Ends]:
    """Average each metric over the first and the last tenth of the records, if two records have it."""
    return [
        Ends(words, statistics.fmean(start), statistics.fmean(end), good)
        for name, (words, good) in _MEASURES.items()
        if len(values := _values(lines, name)) > 1
        for start, end in [_both(values, _PART)]
    ]


def on_same_rows(lines: Sequence[MetricsLine]) -> list[Ends]:
    """Return the metrics of the same rows before the first step and after the last; [] unless both exist.

    Without dropout both views of a text are equal, so that their distance is left out.
    """
    measured = [line for line in lines if line.same_rows]
    if len(measured) < 2 or measured[0].step:
        return []
    start, end = measured[0].same_rows, measured[-1].same_rows
    distance = max(start.get("alignment", 1.0), end.get("alignment", 1.0))
    return [
        Ends(words, start[name], end[name], good)
        for name, (words, good) in _ON_SAME_ROWS.items()
        if name in start and name in end and not (distance < _ONE_VECTOR and name in _OF_VIEWS)
    ]


def risen(lines: Sequence[MetricsLine]) -> tuple[float, float] | None:
    """Return (start, end) of a loss that rises significantly, else None.

    Start and end are means over the first and the last third.
    """
    values = _values(lines, "loss")
    if len(values) < _MIN_RECORDS:
        return None
    start, end = _both(values, 1 / 3)
    error = math.sqrt(statistics.variance(start) / len(start) + statistics.variance(end) / len(end))
    first, last = statistics.fmean(start), statistics.fmean(end)
    return (first, last) if last - first > max(_STANDARD_ERRORS * error, 0.01 * abs(first)) else None


def _both(values: Sequence[float], part: float) -> tuple[Sequence[float], Sequence[float]]:
    size = max(1, round(part * len(values)))
    return values[:size], values[-size:]


def _values(lines: Sequence[MetricsLine], name: str) -> list[float]:
    return [value for line in lines if (value := getattr(line, name)) is not None]
