"""Charts of a training: metrics by step, and the course of alignment and uniformity."""

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
    side,
    svg,
    text_at,
    thin_ranks,
    ticks,
    without_overlap,
    x_axis,
    y_axis,
)
from pipeline.charts.geometry import colour, three_digits

POINTS = 80  # points of a smoothed line; all points are drawn faintly behind it
_COURSE_POINTS = 16  # of alignment against uniformity; with more, the noise of single steps dominates
_MOST_DOTS = 60  # measurements up to which dots are drawn

Points = Sequence[tuple[float, float]]
"""(step, value) with ascending steps"""


@dataclass(frozen=True)
class StepAxis:
    """Step axis shared by the charts of one training.

    Attributes:
        last: number of the last step.
        resumed: steps after which the training was resumed.
    """

    last: float
    resumed: tuple[float, ...] = ()

    def frame(self, low: float, high: float) -> ChartFrame:
        """Return the frame of a chart with values from low to high."""
        return ChartFrame((0, max(self.last, 1)), (low, high))

    def axis(self, frame: ChartFrame) -> str:
        """Draw the step axis, with a line where the training was resumed."""
        at = ticks(0, frame.x[1], 5)
        axis = x_axis(
            frame, without_overlap(frame, [round(x) for x in at]) if frame.x[1] >= 5 else at, "step"
        )
        return axis + "".join(
            f"<g><title>resumed after step {step:,.0f}</title>"
            + rule(frame.px(step), TOP, frame.px(step), HEIGHT - BOTTOM, "anew")
            + "</g>"
            for step in self.resumed
        )


@dataclass(frozen=True)
class ValueAxis:
    """Value axis of a chart by step.

    Attributes:
        label: format of the values.
        floor: largest lower end, or None.
    """

    label: Callable[[float], str] = compact
    floor: float | None = None


def curves_chart(
    curves: Sequence[Points],
    steps: StepAxis,
    what: str,
    axis: ValueAxis = ValueAxis(),
    level: tuple[float, str] | None = None,
) -> Markup:
    """Draw lines by step; many points are smoothed by medians, with all points faintly behind.

    Args:
        curves: points of each line.
        steps: the step axis.
        what: name of the metric.
        axis: the value axis.
        level: a reference value and its label.
    """
    shown = [smoothed(points) for points in curves]
    values = [y for points in shown for _, y in points]
    values += [end for end in (level and level[0], axis.floor) if end is not None]
    frame = steps.frame(*_roomy(values, axis.floor))
    return svg(
        f"{what} over the steps",
        y_axis(frame, ticks(*frame.y, 5), axis.label),
        steps.axis(frame),
        *(_faint(frame, points, number) for number, points in enumerate(curves) if len(points) > POINTS),
        _level(frame, *level) if level is not None else "",
        *(_line(frame, points, number) for number, points in enumerate(shown)),
    )


def dev_chart(points: Points, best: float, steps: StepAxis, name: str) -> Markup:
    """Draw the scores on dev, called `name`, with the score at step `best` marked."""
    low, high = _roomy([y for _, y in points])
    frame = steps.frame(low, high + 0.14 * (high - low))  # room for the label
    chosen = next(point for point in points if point[0] == best)
    x, words = frame.px(best), f"{chosen[1]:.2f} at step {best:,.0f}"
    return svg(
        f"{name} over the steps",
        y_axis(frame, ticks(*frame.y, 5)),
        steps.axis(frame),
        line(frame, points, colour(0)),
        *(_dot(frame, point, "dot") for point in points if len(points) <= _MOST_DOTS),
        _dot(frame, chosen, "dot chosen", 5),
        text_at(x, frame.py(chosen[1]) - 11, words, f"{side(x)} chosen"),
    )


def trajectory_chart(points: Sequence[tuple[float, float]], first: int) -> Markup:
    """Draw alignment against uniformity in the order of the steps; low is better on both axes.

    Args:
        points: (uniformity, alignment) of each record.
        first: step of the first record, the label of a single point.
    """
    course = smoothed(points, _COURSE_POINTS)
    frame = ChartFrame(_roomy([x for x, _ in course]), _roomy([y for _, y in course]))
    named = {"start": course[0], "end": course[-1]} if len(course) > 1 else {f"step {first:,}": course[0]}
    return svg(
        "Alignment against uniformity, from the first step to the last",
        x_axis(frame, ticks(*frame.x, 5), "uniformity: spread of all texts"),
        y_axis(frame, ticks(*frame.y, 5)),
        _better(frame, course[0], course[-1]),
        line(frame, course, colour(0)),
        *(_named(frame, point, name) for name, point in named.items()),
    )


def rate(value: float) -> str:
    """Format a learning rate: 2e−5, 1.5e−4."""
    mantissa, exponent = f"{value:.1e}".split("e")
    return minus(f"{mantissa.removesuffix('.0')}e{int(exponent)}") if value else "0"


def smoothed(points: Sequence[tuple[float, float]], most: int = POINTS) -> list[tuple[float, float]]:
    """Return at most `most` points: medians of groups of neighbours, of which the last may be smaller."""
    size = math.ceil(len(points) / most) or 1
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    return [(median(x for x, _ in group), median(y for _, y in group)) for group in groups]


def _level(frame: ChartFrame, value: float, label: str) -> str:
    """Draw a labelled horizontal line at a reference value."""
    y = frame.py(value)
    return rule(LEFT, y, WIDTH - RIGHT, y, "target") + text_at(
        WIDTH - RIGHT - 4, y - 5, label, "end note value"
    )


def _faint(frame: ChartFrame, points: Points, number: int) -> str:
    """Draw every point, thinned to the space available, clipped to the chart."""
    low, high = frame.y
    kept = [points[int(rank) - 1] for rank, _ in thin_ranks([y for _, y in points])]
    return line(frame, [(x, min(max(y, low), high)) for x, y in kept], f"faint {colour(number)}")


def _line(frame: ChartFrame, points: Points, number: int) -> str:
    """Draw a line, or a dot for a single point."""
    if len(points) > 1:
        return line(frame, points, colour(number))
    return "".join(_dot(frame, point, f"point {colour(number)}", 3.5) for point in points)


def _dot(frame: ChartFrame, point: tuple[float, float], name: str, radius: float = 2.6) -> str:
    step, value = point
    return dot(frame.px(step), frame.py(value), name, radius, f"step {step:,.0f}: {three_digits(value)}")


def _named(frame: ChartFrame, point: tuple[float, float], name: str) -> str:
    """Draw an end of the course, with its name on the side with more room."""
    x, y = frame.px(point[0]), frame.py(point[1])
    right = x > (LEFT + WIDTH) / 2
    title = f"{name}: uniformity {three_digits(point[0])}, alignment {three_digits(point[1])}"
    return dot(x, y, "dot chosen" if name == "end" else "dot", 5, title) + text_at(
        x + (-10 if right else 10), y + 4, name, f"{colour(0)} value {'end' if right else 'start'}"
    )


def _better(frame: ChartFrame, *ends: tuple[float, float]) -> str:
    """Write which direction is better, in the corner that is farthest from both ends of the course."""
    corners = [
        (LEFT + 6.0, TOP + 9.0, "start"),
        (WIDTH - RIGHT - 4.0, TOP + 9.0, "end"),
        (WIDTH - RIGHT - 4.0, HEIGHT - BOTTOM - 8.0, "end"),
    ]
    points = [(frame.px(x), frame.py(y)) for x, y in ends]
    x, y, side = max(corners, key=lambda corner: min(math.dist(corner[:2], point) for point in points))
    return text_at(x, y, "↙ better", f"{side} soft")


def _roomy(values: Sequence[float], bottom: float | None = None) -> tuple[float, float]:
    """Return the range of the values with some room around it, but not below `bottom`."""
    low, high = min(values), max(values)
    room = 0.07 * (high - low) or 0.05 * abs(high) or 0.05
    return (low if bottom is not None and low == bottom else low - room), high + room
