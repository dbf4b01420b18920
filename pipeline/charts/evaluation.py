"""Charts of an evaluation."""

from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from pipeline.charts.frame import ChartFrame, dot, minus, rule, shortened, svg, text_at, ticks

WIDTH = 600  # wider than other charts, because of task names
_LEFT, _RIGHT, _TOP, _BOTTOM, _ROW, _DOT_STEP = 140, 12, 8, 40, 24, 7
_MAX_NAME = 24  # characters of a task's name
COLOURS = 5  # number of colours before they repeat


class TaskDifference(NamedTuple):
    """Value with its interval; without an interval low and high are None."""

    value: float
    low: float | None
    high: float | None


def difference_chart(rows: Sequence[tuple[str, Sequence[TaskDifference | None]]], unit: str) -> Markup:
    """Draw the differences with the first candidate, one row per task.

    Each further candidate has a dot and a line for its interval; right of the centre line is better.
    """
    ends = (abs(end) for _, row in rows for found in row if found for end in found if end is not None)
    most = max(ends, default=0.0) * 1.08 or 1.0
    frame, base = _Scale((-most, most), (0, 1)), _TOP + _ROW * len(rows)
    height = base + _BOTTOM
    return svg(
        f"Differences in {unit} with their intervals",
        *(
            rule(frame.px(x), _TOP, frame.px(x), base, "zero" if x == 0 else "grid")
            + text_at(frame.px(x), base + 17, _signed(x), "middle")
            for x in ticks(-most, most, 8)
        ),
        *(
            _row(frame, name, differences, _TOP + _ROW * (number + 0.5))
            for number, (name, differences) in enumerate(rows)
        ),
        text_at((_LEFT + WIDTH - _RIGHT) / 2, height - 5, f"difference in {unit}", "middle title"),
        width=WIDTH,
        height=height,
    )


class _Scale(ChartFrame):
    """ChartFrame whose x axis starts right of the names."""

    def px(self, value: float) -> float:
        """Return the horizontal pixel of an x value."""
        low, high = self.x
        return round(_LEFT + (WIDTH - _LEFT - _RIGHT) * (value - low) / ((high - low) or 1), 1)


def _row(frame: ChartFrame, name: str, differences: Sequence[TaskDifference | None], y: float) -> str:
    shown = [(number, found) for number, found in enumerate(differences) if found is not None]
    first = y - _DOT_STEP * (len(shown) - 1) / 2
    return text_at(_LEFT - 12, y + 4, shortened(name, _MAX_NAME), "end") + "".join(
        _dot_with_interval(frame, found, number % COLOURS, first + _DOT_STEP * line)
        for line, (number, found) in enumerate(shown)
    )


def _dot_with_interval(frame: ChartFrame, difference: TaskDifference, colour: int, y: float) -> str:
    value, low, high = difference
    title, interval = _signed(value), ""
    if low is not None and high is not None:
        title += f", {_signed(low)} to {_signed(high)}"
        interval = rule(frame.px(low), y, frame.px(high), y, f"interval c{colour}")
    return interval + dot(frame.px(value), round(y, 1), f"c{colour}", 4, title)


def _signed(value: float) -> str:
    """Format with a sign and a true minus: +1.2, −0.35, 0."""
    return minus(f"{value:+.3g}") if value else "0"
