"""Charts for the report of a training: metrics by step, and alignment against uniformity over time."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from markupsafe import Markup

from pipeline.charts.frame import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    ChartFrame,
    compact,
    dot,
    line,
    minus,
    rule,
    svg,
    text_anchor,
    text_at,
    thinned_indices,
    ticks,
    without_overlap,
    x_axis,
    y_axis,
)
from pipeline.charts.geometry import colour, three_digits

SMOOTHED_POINTS = 80  # largest number of points of a smoothed line; all points are drawn faintly behind it
_TRAJECTORY_POINTS = 16  # with more, the noise of single steps dominates
_MAX_DOTS = 60  # a line of more measurements has no dots

Points = Sequence[tuple[float, float]]
"""(step, value) pairs in the order of the steps."""


@dataclass(frozen=True)
class StepAxis:
    """Step axis shared by the charts of one training."""

    last: float
    """number of the last step"""
    resumed: tuple[float, ...] = ()
    """steps after which an interrupted training was resumed"""

    def frame(self, low: float, high: float) -> ChartFrame:
        """Return the frame of a chart with values from low to high."""
        return ChartFrame((0, max(self.last, 1)), (low, high))

    def axis(self, frame: ChartFrame) -> str:
        """Draw the step axis, with a line at each step where the training was resumed."""
        values = ticks(0, frame.x[1], 5)
        if frame.x[1] >= 5:
            values = without_overlap(frame, [round(value) for value in values])
        return x_axis(frame, values, "step") + "".join(
            f"<g><title>resumed after step {step:,.0f}</title>"
            + rule(frame.px(step), TOP, frame.px(step), HEIGHT - BOTTOM, "resumed")
            + "</g>"
            for step in self.resumed
        )


@dataclass(frozen=True)
class ValueAxis:
    """Value axis of a chart by step."""

    label: Callable[[float], str] = compact
    """format of the values"""
    floor: float | None = None
    """value that the axis always shows, with no margin below it; None: no such value"""


def curves_chart(
    curves: Sequence[Points],
    steps: StepAxis,
    name: str,
    axis: ValueAxis = ValueAxis(),
    level: tuple[float, str] | None = None,
) -> Markup:
    """Draw lines by step. Lines of many points are smoothed by medians, with all points faintly behind.

    Args:
        curves: points of each line.
        steps: the step axis.
        name: name of the metric.
        axis: the value axis.
        level: a reference value, drawn as a horizontal line, and its label.
    """
    smoothed = [smooth(points) for points in curves]
    values = [y for points in smoothed for _, y in points]
    values += [end for end in (level and level[0], axis.floor) if end is not None]
    frame = steps.frame(*_with_room(values, axis.floor))
    return svg(
        f"{name} over the steps",
        y_axis(frame, ticks(*frame.y, 5), axis.label),
        steps.axis(frame),
        *(
            _faint_line(frame, points, number)
            for number, points in enumerate(curves)
            if len(points) > SMOOTHED_POINTS
        ),
        _level(frame, *level) if level is not None else "",
        *(_line(frame, points, number) for number, points in enumerate(smoothed)),
    )


def dev_chart(points: Points, best_step: float, steps: StepAxis, name: str) -> Markup:
    """Draw the scores on the dev set.

    Args:
        points: score by step.
        best_step: step of the score to mark.
        steps: the step axis.
        name: name of the score.
    """
    low, high = _with_room([y for _, y in points])
    frame = steps.frame(low, high + 0.14 * (high - low))  # room for the label
    best_point = next(point for point in points if point[0] == best_step)
    x, label = frame.px(best_step), f"{best_point[1]:.2f} at step {best_step:,.0f}"
    return svg(
        f"{name} over the steps",
        y_axis(frame, ticks(*frame.y, 5)),
        steps.axis(frame),
        line(frame, points, colour(0)) if len(points) > 2 else "",
        *(_dot(frame, point, "dot") for point in points if len(points) <= _MAX_DOTS),
        _dot(frame, best_point, "dot chosen", 5),
        text_at(x, frame.py(best_point[1]) - 11, label, f"{text_anchor(x)} chosen"),
    )


def trajectory_chart(points: Sequence[tuple[float, float]], first: int) -> Markup:
    """Draw alignment against uniformity in the order of the steps; low is better on both axes.

    Args:
        points: (uniformity, alignment) of each record.
        first: step of the first record; it labels the point if there is only one.
    """
    path = smooth(points, _TRAJECTORY_POINTS)
    frame = ChartFrame(_with_room([x for x, _ in path]), _with_room([y for _, y in path]))
    ends = {"start": path[0], "end": path[-1]} if len(path) > 1 else {f"step {first:,}": path[0]}
    return svg(
        "Alignment against uniformity, from the first step to the last",
        x_axis(frame, ticks(*frame.x, 5), "uniformity: spread of all texts"),
        y_axis(frame, ticks(*frame.y, 5)),
        _better_label(frame, path[0], path[-1]),
        line(frame, path, colour(0)),
        *(_end_point(frame, point, name) for name, point in ends.items()),
    )


def rate(value: float) -> str:
    """Format a learning rate: 2e−5, 1.5e−4."""
    mantissa, exponent = f"{value:.1e}".split("e")
    return minus(f"{mantissa.removesuffix('.0')}e{int(exponent)}") if value else "0"


def smooth(
    points: Sequence[tuple[float, float]], max_points: int = SMOOTHED_POINTS
) -> list[tuple[float, float]]:
    """Replace groups of neighbouring points by their medians, so that at most `max_points` are left."""
    size = math.ceil(len(points) / max_points) or 1
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    return [(median(x for x, _ in group), median(y for _, y in group)) for group in groups]


def _level(frame: ChartFrame, value: float, label: str) -> str:
    """Draw a labelled horizontal line at a reference value."""
    y = frame.py(value)
    return rule(LEFT, y, WIDTH - RIGHT, y, "target") + text_at(
        WIDTH - RIGHT - 4, y - 5, label, "end note value"
    )


def _faint_line(frame: ChartFrame, points: Points, number: int) -> str:
    """Draw the original points as a thin line, clipped to the chart; very many points are thinned."""
    low, high = frame.y
    thinned = [points[index] for index in thinned_indices(len(points))]
    return line(frame, [(x, min(max(y, low), high)) for x, y in thinned], f"faint {colour(number)}")


def _line(frame: ChartFrame, points: Points, number: int) -> str:
    """Draw a line, or dots if it has only one or two points, because a line would suggest a trend."""
    if len(points) > 2:
        return line(frame, points, colour(number))
    return "".join(_dot(frame, point, f"point {colour(number)}", 3.5) for point in points)


def _dot(frame: ChartFrame, point: tuple[float, float], css_class: str, radius: float = 2.6) -> str:
    """Draw a dot whose tooltip gives the step and the value."""
    step, value = point
    return dot(frame.px(step), frame.py(value), css_class, radius, f"step {step:,.0f}: {three_digits(value)}")


def _end_point(frame: ChartFrame, point: tuple[float, float], name: str) -> str:
    """Draw an end of the trajectory, with its name on the side with more room."""
    x, y = frame.px(point[0]), frame.py(point[1])
    to_left = x > (LEFT + WIDTH) / 2
    title = f"{name}: uniformity {three_digits(point[0])}, alignment {three_digits(point[1])}"
    return dot(x, y, "dot chosen" if name == "end" else "dot", 5, title) + text_at(
        x + (-10 if to_left else 10), y + 4, name, f"{colour(0)} value {'end' if to_left else 'start'}"
    )


def _better_label(frame: ChartFrame, *ends: tuple[float, float]) -> str:
    """Write which direction is better, in the corner that is farthest from both ends of the trajectory."""
    corners = [
        (LEFT + 6.0, TOP + 9.0, "start"),
        (WIDTH - RIGHT - 4.0, TOP + 9.0, "end"),
        (WIDTH - RIGHT - 4.0, HEIGHT - BOTTOM - 8.0, "end"),
    ]
    points = [(frame.px(x), frame.py(y)) for x, y in ends]
    x, y, anchor = max(corners, key=lambda corner: min(math.dist(corner[:2], point) for point in points))
    return text_at(x, y, "↙ better", f"{anchor} soft")


def _with_room(values: Sequence[float], floor: float | None = None) -> tuple[float, float]:
    """Return the range of the values with some room around it, except below `floor`."""
    low, high = min(values), max(values)
    room = 0.07 * (high - low) or 0.05 * abs(high) or 0.05
    return (low if floor is not None and low == floor else low - room), high + room
