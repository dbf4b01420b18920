"""Charts of an evaluation."""

from collections.abc import Sequence

from markupsafe import Markup

from pipeline.charts.frame import ChartFrame, dot, minus, rule, shortened, svg, text_at, ticks

WIDTH = 600  # wider than other charts, because of task names
_LEFT, _RIGHT, _TOP, _BOTTOM, _ROW, _DOT_STEP = 140, 12, 8, 40, 24, 7
_MOST_LETTERS = 24  # largest length of a task's name
COLOURS = 5  # number of colours before they repeat

Dot = tuple[float, float | None, float | None]
"""(value, low, high); bounds are None without an interval"""


def difference_chart(rows: Sequence[tuple[str, Sequence[Dot | None]]], unit: str) -> Markup:
    """Draw the differences with the first candidate, one row per task.

    Each further candidate has a dot and a line for its interval; right of the centre line is better.
    """
    ends = (abs(end) for _, dots in rows for dot in dots if dot for end in dot if end is not None)
    most = max(ends, default=0.0) * 1.08 or 1.0
    frame, base = _Scale((-most, most), (0, 1)), _TOP + _ROW * len(rows)
    drawn = "".join(_grid_line(frame, x, base) for x in ticks(-most, most, 8))
    for number, (name, dots) in enumerate(rows):
        drawn += _row(frame, name, dots, _TOP + _ROW * (number + 0.5))
    size = (WIDTH, base + _BOTTOM)
    drawn += text_at((_LEFT + WIDTH - _RIGHT) / 2, size[1] - 5, f"difference in {unit}", "middle title")
    return svg(drawn, f"Differences in {unit} with their intervals", size)


class _Scale(ChartFrame):
    """ChartFrame whose x axis starts right of the names."""

    def px(self, value: float) -> float:
        """Return the horizontal pixel of an x value."""
        low, high = self.x
        return round(_LEFT + (WIDTH - _LEFT - _RIGHT) * (value - low) / ((high - low) or 1), 1)


def _grid_line(frame: ChartFrame, x: float, base: float) -> str:
    return rule(frame.px(x), _TOP, frame.px(x), base, "zero" if x == 0 else "grid") + text_at(
        frame.px(x), base + 17, _signed(x), "middle"
    )


def _row(frame: ChartFrame, name: str, dots: Sequence[Dot | None], y: float) -> str:
    shown = [(number, dot) for number, dot in enumerate(dots) if dot is not None]
    first = y - _DOT_STEP * (len(shown) - 1) / 2
    return text_at(_LEFT - 12, y + 4, shortened(name, _MOST_LETTERS), "end") + "".join(
        _dot(frame, dot, number % COLOURS, first + _DOT_STEP * at) for at, (number, dot) in enumerate(shown)
    )


def _dot(frame: ChartFrame, drawn: Dot, colour: int, y: float) -> str:
    value, low, high = drawn
    title, interval = _signed(value), ""
    if low is not None and high is not None:
        title += f", {_signed(low)} to {_signed(high)}"
        interval = rule(frame.px(low), y, frame.px(high), y, f"interval c{colour}")
    return interval + dot(frame.px(value), round(y, 1), f"c{colour}", 4, title)


def _signed(value: float) -> str:
    """Format with a sign and a true minus: +1.2, −0.35, 0."""
    return minus(f"{value:+.3g}") if value else "0"
