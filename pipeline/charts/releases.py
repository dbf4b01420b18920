"""Chart for the page of all releases: one metric by release."""

from collections.abc import Callable, Sequence

from markupsafe import Markup

from pipeline.charts.frame import ChartFrame, compact, line, svg, ticks, without_overlap, x_axis, y_axis

_MARGIN = 0.12  # room above the highest and below the lowest point, as a proportion of the range
# Smallest range of an axis that does not start at 0, as a proportion of the highest value: without it, noise
# would fill the chart and look like a change.
_MIN_RANGE = 0.05


def history_chart(
    points: Sequence[tuple[int, float]],
    name: str,
    label: Callable[[float], str] = compact,
    *,
    from_zero: bool = True,
) -> Markup:
    """Draw a metric as a line with a dot per release.

    Args:
        points: pairs of a release's number and its value.
        name: name of the metric.
        label: format of the values on the axis.
        from_zero: True starts the axis of the values at 0.
    """
    numbers, values = [number for number, _ in points], [value for _, value in points]
    low, high = (0.0 if from_zero else min(values)), max(values)
    if not from_zero:
        low = min(low, high - _MIN_RANGE * abs(high))
    room = _MARGIN * ((high - low) or abs(high) or 1.0)
    frame = ChartFrame((numbers[0], numbers[-1]), (low if from_zero else low - room, high + room))
    return svg(
        f"{name} by release",
        x_axis(frame, without_overlap(frame, numbers), "release"),
        y_axis(frame, ticks(*frame.y, 4), label),
        line(frame, points, "accent"),
        *(f'<circle class="dot" cx="{frame.px(x)}" cy="{frame.py(y)}" r="2.6"/>' for x, y in points),
    )
