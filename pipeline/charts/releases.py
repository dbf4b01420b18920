"""Charts of the page over all releases: one metric each, by release."""

from collections.abc import Callable, Sequence

from markupsafe import Markup

from pipeline.charts.frame import ChartFrame, compact, line, svg, ticks, without_overlap, x_axis, y_axis

_ROOM = 0.12  # of the range, above the highest and below the lowest point
_MIN_RANGE = 0.05  # of the highest value, if the axis does not start at 0, so that noise looks small


def history_chart(
    points: Sequence[tuple[int, float]],
    name: str,
    label: Callable[[float], str] = compact,
    *,
    from_zero: bool = True,
) -> Markup:
    """Draw (release, value) as a line with a dot per release; `from_zero` starts the axis at 0."""
    numbers, values = [number for number, _ in points], [value for _, value in points]
    low, high = (0.0 if from_zero else min(values)), max(values)
    if not from_zero:
        low = min(low, high - _MIN_RANGE * abs(high))
    room = _ROOM * ((high - low) or abs(high) or 1.0)
    frame = ChartFrame((numbers[0], numbers[-1]), (low if from_zero else low - room, high + room))
    return svg(
        f"{name} by release",
        x_axis(frame, without_overlap(frame, numbers), "release"),
        y_axis(frame, ticks(*frame.y, 4), label),
        line(frame, points, "whitened"),
        *(f'<circle class="dot" cx="{frame.px(x)}" cy="{frame.py(y)}" r="2.6"/>' for x, y in points),
    )
