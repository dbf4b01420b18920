"""Chart for the report of an evaluation: differences between candidates, by task."""

from collections.abc import Sequence

from markupsafe import Markup

from pipeline.charts.frame import ChartFrame, dot, minus, rule, shorten, svg, text_at, ticks
from pipeline.evaluate.bootstrap import ScoreEstimate

WIDTH = 600  # pixels; wider than other charts, because of the task names
_LEFT, _RIGHT, _TOP, _BOTTOM = 140, 12, 8, 40  # margins in pixels
_ROW_HEIGHT, _DOT_STEP = 24, 7  # pixels: height of a task's row, and distance between the dots in it
_MAX_NAME = 24  # characters of a task's name
_MARGIN = 1.08  # limit of the axis over the largest value, so that no dot is cut off at the edge
COLOURS = 5  # candidates beyond this number get the first colours again


def difference_chart(rows: Sequence[tuple[str, Sequence[ScoreEstimate | None]]], unit: str) -> Markup:
    """Draw the differences with the first candidate, one row per task.

    Each further candidate has a dot, and a line for its interval. Right of the centre line is better.

    Args:
        rows: name of each task, with the difference of each further candidate; None if it has no score.
        unit: unit of the differences.
    """
    differences = [estimate for _, row in rows for estimate in row if estimate is not None]
    values = (x for estimate in differences for x in (estimate.value, estimate.low, estimate.high))
    ends = [abs(x) for x in values if x is not None]
    limit = max(ends, default=0.0) * _MARGIN or 1.0
    frame = ChartFrame((-limit, limit), (0, 1), left=_LEFT, right=WIDTH - _RIGHT)
    base = _TOP + _ROW_HEIGHT * len(rows)  # pixel of the x axis
    height = base + _BOTTOM
    return svg(
        f"Differences in {unit} with their intervals",
        *(
            rule(frame.px(x), _TOP, frame.px(x), base, "zero" if x == 0 else "grid")
            + text_at(frame.px(x), base + 17, _signed(x), "middle")
            for x in ticks(-limit, limit, 8)
        ),
        *(
            _row(frame, name, row, _TOP + _ROW_HEIGHT * (number + 0.5))
            for number, (name, row) in enumerate(rows)
        ),
        text_at((frame.left + frame.right) / 2, height - 5, f"difference in {unit}", "middle title"),
        width=WIDTH,
        height=height,
    )


def _row(frame: ChartFrame, name: str, differences: Sequence[ScoreEstimate | None], y: float) -> str:
    """Draw a task's name, and the differences of the candidates below each other, centred at pixel `y`."""
    defined = ((number, estimate) for number, estimate in enumerate(differences) if estimate)
    present = [(number, estimate) for number, estimate in defined if estimate.value is not None]
    first_y = y - _DOT_STEP * (len(present) - 1) / 2
    return text_at(_LEFT - 12, y + 4, shorten(name, _MAX_NAME), "end") + "".join(
        _dot_with_interval(frame, estimate, number % COLOURS, first_y + _DOT_STEP * line)
        for line, (number, estimate) in enumerate(present)
    )


def _dot_with_interval(frame: ChartFrame, difference: ScoreEstimate, colour: int, y: float) -> str:
    value, low, high = difference.value, difference.low, difference.high
    assert value is not None, "undefined differences are left out"
    title, interval = _signed(value), ""
    if low is not None and high is not None:
        title += f", {_signed(low)} to {_signed(high)}"
        interval = rule(frame.px(low), y, frame.px(high), y, f"interval c{colour}")
    return interval + dot(frame.px(value), round(y, 1), f"c{colour}", 4, title)


def _signed(value: float) -> str:
    """Format with three digits, a sign and a true minus: +1.2, −0.35, 0."""
    return minus(f"{value:+.3g}") if value else "0"
