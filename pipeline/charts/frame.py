"""Axes and marks of charts: inline SVG of a few kilobytes without script.

Colours are those of the page (light, dark, print).
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from pipeline.stats.sample import Histogram

WIDTH, HEIGHT = 420, 230  # about the width of a phone and of half a page: text is about 12 px on both
LEFT, RIGHT, TOP, BOTTOM = 44, 10, 12, 42
MAX_LINE_POINTS = 240
_SMALL = 1e-3  # 0.001 fits into the margin, 0.0001 does not
_NUMBER = re.compile(r"(\u2212?\d+)\.?(\d*)( %)?")


@dataclass(frozen=True)
class ChartFrame:
    """Maps values to pixels.

    Attributes:
        x: range of x.
        y: range of y.
        log_x: x is logarithmic.
    """

    x: tuple[float, float]
    y: tuple[float, float]
    log_x: bool = False

    def px(self, value: float) -> float:
        """Return the horizontal pixel of an x value."""
        scale: Callable[[float], float] = math.log if self.log_x else float
        low, high = scale(self.x[0]), scale(self.x[1])
        return round(LEFT + (WIDTH - LEFT - RIGHT) * (scale(value) - low) / ((high - low) or 1), 1)

    def py(self, value: float) -> float:
        """Return the vertical pixel of a y value; 0 is the top of the chart."""
        low, high = self.y
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - low) / ((high - low) or 1), 1)


def ticks(low: float, high: float, count: int) -> list[float]:
    """Return about `count` round numbers in [low, high], with steps of 1, 2 or 5 times a power of ten."""
    if high <= low:
        return [low]
    rough = (high - low) / count
    power = 10 ** math.floor(math.log10(rough))
    step = next(times * power for times in (1, 2, 5, 10) if times * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(number * step, 10) for number in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times powers of ten in [low, high], low > 0.

    If these are fewer than two, return other round numbers.
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found = [
        float(f"{times}e{power}")
        for power in powers
        for times in (1, 2, 5)
        if low <= float(f"{times}e{power}") <= high
    ]
    return found if len(found) > 1 else ticks(low, high, 4)


def percent(proportion: float) -> str:
    """Format a proportion: 0.975 -> 97.5 %, 0.97 -> 97 %."""
    return f"{100 * proportion:.1f}".removesuffix(".0") + " %"


def minus(number: str) -> str:
    """Replace hyphens in a formatted number by true minus signs."""
    return number.replace("-", "\u2212")


def compact(number: float) -> str:
    """Format for an axis with at most four characters and a true minus: 950, 12k, 1.5M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return minus(f"{number / size:.3g}{letter}")
    return minus(f"{number:g}")


def shortened(text: str, most: int) -> str:
    """Shorten a text to at most `most` letters."""
    return text if len(text) <= most else text[: most - 1] + "…"


def svg(label: str, *parts: str, width: int = WIDTH, height: int = HEIGHT) -> Markup:
    """Put the parts of a chart, each drawn over those before it, into an svg element."""
    return Markup(
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'
    )


def x_axis(frame: ChartFrame, at: Sequence[float], title: str) -> str:
    """Draw the x axis with labelled ticks and a title."""
    base = HEIGHT - BOTTOM
    names = [compact(x) for x in at] if frame.log_x else tick_labels(at)
    marks = "".join(rule(frame.px(x), base, frame.px(x), base + 4, "axis") for x in at)
    return marks + named_x_axis(frame, list(zip(at, names, strict=True)), title)


def named_x_axis(frame: ChartFrame, names: Sequence[tuple[float, str]], title: str) -> str:
    """Draw the x axis with names at given values and a title."""
    base = HEIGHT - BOTTOM
    return (
        rule(LEFT, base, WIDTH - RIGHT, base, "axis")
        + "".join(text_at(frame.px(x), base + 17, name, "middle") for x, name in names)
        + text_at((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 5, title, "middle title")
    )


def y_axis(frame: ChartFrame, at: Sequence[float], label: Callable[[float], str] = compact) -> str:
    """Draw horizontal grid lines with labels."""
    factor, unit = _factor(at) if label is compact else (1.0, "")
    return unit + "".join(
        rule(LEFT, frame.py(y), WIDTH - RIGHT, frame.py(y), "grid")
        + text_at(LEFT - 7, frame.py(y) + 4, name, "end")
        for y, name in zip(at, tick_labels([y / factor for y in at], label), strict=True)
    )


def _factor(at: Sequence[float]) -> tuple[float, str]:
    """Return a power of ten to take out of labels that are too small for the left margin, and its text."""
    largest = max(map(abs, at), default=0.0)
    if not 0 < largest < _SMALL:
        return 1.0, ""
    power = math.floor(math.log10(largest))
    return 10.0**power, text_at(LEFT + 4, TOP - 2, f"\u00d7 1e\u2212{-power}", "start")


def tick_labels(at: Sequence[float], label: Callable[[float], str] = compact) -> list[str]:
    """Label the ticks of one axis with equal decimals, as many as distinguish neighbours."""
    names = [label(value) for value in at]
    if len(set(names)) < len(names):
        scale, unit = (100, " %") if names[0].endswith("%") else (1, "")
        names = [minus(f"{scale * value:.6g}{unit}") for value in at]
    found = [_NUMBER.fullmatch(name) for name in names]
    decimals = max((len(match[2]) for match in found if match), default=0)
    if not decimals or not all(found):
        return names
    return [f"{match[1]}.{match[2]:0<{decimals}}{match[3] or ''}" for match in found if match]


def line(frame: ChartFrame, points: Sequence[tuple[float, float]], name: str) -> str:
    """Draw a line through points."""
    return f'<path class="line {name}" d="M{" L".join(f"{frame.px(x)} {frame.py(y)}" for x, y in points)}"/>'


def area(frame: ChartFrame, histogram: Histogram, name: str) -> str:
    """Draw a histogram as a stepped area."""
    path = " L".join(f"{frame.px(x)} {frame.py(count / histogram.total)}" for x, count in outline(histogram))
    return f'<path class="area {name}" d="M{path}Z"/>'


def outline(histogram: Histogram) -> list[tuple[float, int]]:
    """Return the corners (value, count) of a histogram as a stepped area, from its first to last full bin."""
    low, high = occupied_range(histogram)
    inside = [
        part
        for part in zip(histogram.edges, histogram.edges[1:], histogram.counts, strict=False)
        if part[0] >= low and part[1] <= high
    ]
    return [(low, 0), *((x, count) for left, right, count in inside for x in (left, right)), (high, 0)]


def rule(x1: float, y1: float, x2: float, y2: float, name: str) -> str:
    """Draw a straight line between two pixels."""
    return f'<line class="{name}" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>'


def text_at(x: float, y: float, text: str, name: str) -> str:
    """Draw text at a pixel."""
    return f'<text class="{name}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def side(x: float) -> str:
    """Return the CSS class that keeps a label at pixel x inside the chart."""
    return "start" if x < WIDTH / 3 else "end" if x > 2 * WIDTH / 3 else "middle"


def dot(x: float, y: float, name: str, radius: float, title: str) -> str:
    """Draw a circle at a pixel, with a tooltip."""
    return f'<circle class="{name}" cx="{x}" cy="{y}" r="{radius}"><title>{title}</title></circle>'


def bar(name: str, x: float, width: float, y: tuple[float, float], title: str) -> str:
    """Draw a rectangle between two heights y (top, bottom), all in pixels, with a tooltip."""
    size = f'x="{x:.1f}" y="{y[0]}" width="{width:.1f}" height="{y[1] - y[0]:.1f}"'
    return f'<rect class="{name}" {size}><title>{title}</title></rect>'


def cosine_areas(histograms: Sequence[tuple[str, Histogram]], room: float, items: str) -> Markup:
    """Draw histograms of the cosines of random pairs of `items`, with a line at each mean.

    Args:
        histograms: (CSS class, histogram); at least one.
        room: height of the chart as a multiple of the highest bin.
        items: texts or sentences.
    """
    ends = [edge for _, one in histograms for edge in occupied_range(one)]
    highest = max(max(one.counts) / one.total for _, one in histograms)
    frame = ChartFrame((min(*ends, -0.1), max(*ends, 0.1)), (0, room * highest))
    return svg(
        f"Cosines of random pairs of {items}",
        x_axis(frame, ticks(*frame.x, 6), f"cosine of two random {items}"),
        y_axis(frame, ticks(*frame.y, 4), percent),
        *(area(frame, one, name) for name, one in histograms),
        *(
            rule(frame.px(one.mean), TOP, frame.px(one.mean), HEIGHT - BOTTOM, f"mean {name}")
            for name, one in histograms
        ),
    )


def occupied_range(histogram: Histogram) -> tuple[float, float]:
    """Return the ends of the bins that are not empty."""
    bins = [number for number, count in enumerate(histogram.counts) if count] or [0]
    return histogram.edges[bins[0]], histogram.edges[bins[-1] + 1]


def thin_ranks(values: Sequence[float]) -> list[tuple[float, float]]:
    """Return (rank, value) of at most about 240 values, including both ends."""
    stride = max(1, len(values) // MAX_LINE_POINTS)
    return [(index + 1, values[index]) for index in sorted({*range(0, len(values), stride), len(values) - 1})]


def without_overlap(frame: ChartFrame, values: Sequence[float]) -> list[float]:
    """Return the values whose labels do not overlap."""
    kept: list[float] = []
    for value in values:
        if not kept or frame.px(value) - frame.px(kept[-1]) >= 34:
            kept.append(value)
    return kept
