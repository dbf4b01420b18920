"""Charts of a training: figures over its steps, in the colours s0 to s5, and the way that its vectors took."""

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
    Frame,
    compact,
    line,
    rule,
    spaced,
    svg,
    thinned,
    ticks,
    words_at,
    x_axis,
    y_axis,
)
from pipeline.charts.geometry import colour, figure

POINTS = 80  # points of a line that says where a figure goes; what it is step by step stands faintly behind
_STATIONS = 16  # of the way of the vectors: with more, the steps' own noise is all that one sees
_DOTTED = 60  # measurements that are drawn as dots too

Points = Sequence[tuple[float, float]]
"""(step, value), steps rising"""


@dataclass(frozen=True)
class Steps:
    """The axis that charts of one training have in common. resumed: steps after which it was begun anew."""

    last: float
    resumed: tuple[float, ...] = ()

    def frame(self, low: float, high: float) -> Frame:
        return Frame((0, max(self.last, 1)), (low, high))

    def axis(self, frame: Frame) -> str:
        rules = [
            (step, rule(frame.px(step), TOP, frame.px(step), HEIGHT - BOTTOM, "anew"))
            for step in self.resumed
        ]
        marks = "".join(
            f"<g><title>begun anew after step {step:,.0f}</title>{drawn}</g>" for step, drawn in rules
        )
        at = ticks(0, frame.x[1], 5)
        return x_axis(frame, spaced(frame, [round(x) for x in at]) if frame.x[1] >= 5 else at, "step") + marks


def curves_chart(
    curves: Sequence[Points],
    steps: Steps,
    what: str,
    *,
    level: tuple[float, str] | None = None,
    floor: float | None = None,
    label: Callable[[float], str] = compact,
) -> Markup:
    """Lines over the steps; where there are many points, the medians of neighbours, with every point faintly behind.

    level: a value that means something, with what it means; floor: where the axis begins at the highest.
    """
    shown = [smoothed(points) for points in curves]
    values = (
        [y for points in shown for _, y in points]
        + ([level[0]] if level else [])
        + ([floor] if floor is not None else [])
    )
    frame = steps.frame(*_roomy(min(values), max(values), bottom=floor))
    faint = "".join(
        _faint(frame, points, number) for number, points in enumerate(curves) if len(points) > POINTS
    )
    drawn = "".join(_line(frame, points, number) for number, points in enumerate(shown))
    mark = (
        "" if level is None else rule(LEFT, frame.py(level[0]), WIDTH - RIGHT, frame.py(level[0]), "target")
    )
    words = (
        ""
        if level is None
        else words_at(WIDTH - RIGHT - 4, frame.py(level[0]) - 5, level[1], "end note value")
    )
    return svg(
        y_axis(frame, ticks(*frame.y, 5), label) + steps.axis(frame) + faint + mark + drawn + words,
        f"{what} over the steps",
    )


def dev_chart(points: Points, best: float, steps: Steps, name: str) -> Markup:
    """The figure on dev that is called so; the one at step `best` is marked and written."""
    values = [y for _, y in points]
    low, high = _roomy(min(values), max(values))
    frame = steps.frame(low, high + 0.14 * (high - low))  # room for the label
    dots = "".join(_dot(frame, point, "dot") for point in points) if len(points) <= _DOTTED else ""
    chosen = next(point for point in points if point[0] == best)
    side = "start" if frame.px(best) < WIDTH / 3 else "end" if frame.px(best) > 2 * WIDTH / 3 else "middle"
    marked = _dot(frame, chosen, "dot chosen", 5) + words_at(
        frame.px(best), frame.py(chosen[1]) - 11, f"{chosen[1]:.2f} at step {best:,.0f}", f"{side} chosen"
    )
    return svg(
        y_axis(frame, ticks(*frame.y, 5))
        + steps.axis(frame)
        + line(frame, points, colour(0))
        + dots
        + marked,
        f"{name} over the steps",
    )


def way_chart(points: Sequence[tuple[float, float]], first: int) -> Markup:
    """Alignment against uniformity in the order of the steps, from start to end: low is good on both axes.

    Args:
        points: (uniformity, alignment) of each record.
        first: step of the first record, which names a point that is the only one.
    """
    way = smoothed(points, _STATIONS)
    frame = Frame(_roomy(*_ends([x for x, _ in way])), _roomy(*_ends([y for _, y in way])))
    drawn = (
        line(frame, way, colour(0))
        + _named(frame, way[0], "start" if len(way) > 1 else f"step {first:,}")
        + (_named(frame, way[-1], "end") if len(way) > 1 else "")
    )
    axes = x_axis(frame, ticks(*frame.x, 5), "uniformity: spread of all texts") + y_axis(
        frame, ticks(*frame.y, 5)
    )
    return svg(
        axes + _better(frame, way[0], way[-1]) + drawn,
        "Alignment against uniformity, from the first step to the last",
    )


def rate(value: float) -> str:
    """2e−5, 1.5e−4: a learning rate in few letters."""
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa.removesuffix('.0')}e{int(exponent)}".replace("-", "\u2212") if value else "0"


def smoothed(points: Sequence[tuple[float, float]], most: int = POINTS) -> list[tuple[float, float]]:
    """At most so many points: medians of neighbours, which one wild step does not move, of equally many each; the last may be of fewer."""
    size = math.ceil(len(points) / most) or 1
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    return [(median(x for x, _ in group), median(y for _, y in group)) for group in groups]


def _faint(frame: Frame, points: Points, number: int) -> str:
    """Every point, as far as there is room for them, held inside the chart."""
    low, high = frame.y
    kept = [points[int(place) - 1] for place, _ in thinned([y for _, y in points])]
    return line(frame, [(x, min(max(y, low), high)) for x, y in kept], f"faint {colour(number)}")


def _line(frame: Frame, points: Points, number: int) -> str:
    """A single point is a dot: a line of it would not be seen."""
    if len(points) > 1:
        return line(frame, points, colour(number))
    return "".join(_dot(frame, point, f"point {colour(number)}", 3.5) for point in points)


def _dot(frame: Frame, point: tuple[float, float], name: str, radius: float = 2.6) -> str:
    return f'<circle class="{name}" cx="{frame.px(point[0])}" cy="{frame.py(point[1])}" r="{radius}"><title>step {point[0]:,.0f}: {figure(point[1])}</title></circle>'


def _named(frame: Frame, point: tuple[float, float], name: str) -> str:
    """An end of the way, its name on the side that has room."""
    x, y = frame.px(point[0]), frame.py(point[1])
    right = x > (LEFT + WIDTH) / 2
    title = f"{name}: uniformity {figure(point[0])}, alignment {figure(point[1])}"
    mark = f'<circle class="dot{" chosen" * (name == "end")}" cx="{x}" cy="{y}" r="5"><title>{title}</title></circle>'
    return mark + words_at(
        x + (-10 if right else 10), y + 4, name, f"{colour(0)} value {'end' if right else 'start'}"
    )


def _better(frame: Frame, *ends: tuple[float, float]) -> str:
    """Which way is better, in the corner that is furthest from both ends of the way."""
    corners = [
        (LEFT + 6.0, TOP + 9.0, "start"),
        (WIDTH - RIGHT - 4.0, TOP + 9.0, "end"),
        (WIDTH - RIGHT - 4.0, HEIGHT - BOTTOM - 8.0, "end"),
    ]
    points = [(frame.px(x), frame.py(y)) for x, y in ends]
    x, y, side = max(corners, key=lambda corner: min(math.dist(corner[:2], point) for point in points))
    return words_at(x, y, "↙ better", f"{side} soft")


def _ends(values: Sequence[float]) -> tuple[float, float]:
    return min(values), max(values)


def _roomy(low: float, high: float, bottom: float | None = None) -> tuple[float, float]:
    """The range with some room around it; exactly from `bottom` where that is its lower end."""
    room = 0.07 * (high - low) or 0.05 * abs(high) or 0.05
    return (low if bottom is not None and low == bottom else low - room), high + room
