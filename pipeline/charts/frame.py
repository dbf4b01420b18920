"""Axes, lines, bars and labels of charts, as SVG elements whose colours are CSS classes of the page."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from pipeline.stats.sample import Histogram

# Pixels: about the width of a phone and of half a page, so that text has about 12 px.
WIDTH, HEIGHT = 420, 230
LEFT, RIGHT, TOP, BOTTOM = 44, 10, 12, 42  # margins in pixels
MAX_LINE_POINTS = 240  # points of a line; more are thinned
_MIN_LABEL_GAP = 34  # pixels between the labels of an x axis
_MIN_TICK = 1e-3  # smaller labels do not fit into the left margin, and are divided by a power of ten
_NUMBER = re.compile(r"(\u2212?\d+)\.?(\d*)( %)?")  # integer part, decimals, unit


@dataclass(frozen=True)
class ChartFrame:
    """Mapping of values to pixels of a chart."""

    x: tuple[float, float]
    """range of the x axis"""
    y: tuple[float, float]
    """range of the y axis"""
    log_x: bool = False
    """True if the x axis is logarithmic"""
    left: int = LEFT
    """pixel where the x axis begins"""
    right: int = WIDTH - RIGHT
    """pixel where the x axis ends"""

    def px(self, value: float) -> float:
        """Return the horizontal pixel of an x value."""
        scale: Callable[[float], float] = math.log if self.log_x else float
        low, high = scale(self.x[0]), scale(self.x[1])
        return round(self.left + (self.right - self.left) * (scale(value) - low) / ((high - low) or 1), 1)

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
    candidates = [float(f"{times}e{power}") for power in powers for times in (1, 2, 5)]
    values = [value for value in candidates if low <= value <= high]
    return values if len(values) > 1 else ticks(low, high, 4)


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


def shorten(text: str, max_length: int) -> str:
    """Shorten a text to at most `max_length` characters, with an ellipsis at its end."""
    return text if len(text) <= max_length else text[: max_length - 1] + "…"


def svg(label: str, *parts: str, width: int = WIDTH, height: int = HEIGHT) -> Markup:
    """Combine the shapes of a chart into an svg element; later shapes are drawn over earlier ones."""
    return Markup(
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'
    )


def x_axis(frame: ChartFrame, values: Sequence[float], title: str) -> str:
    """Draw the x axis with labelled ticks at `values`, and a title."""
    base = HEIGHT - BOTTOM
    labels = [compact(x) for x in values] if frame.log_x else tick_labels(values)
    tick_marks = "".join(rule(frame.px(x), base, frame.px(x), base + 4, "axis") for x in values)
    return tick_marks + labelled_x_axis(frame, list(zip(values, labels, strict=True)), title)


def labelled_x_axis(frame: ChartFrame, labels: Sequence[tuple[float, str]], title: str) -> str:
    """Draw the x axis with the given labels (value, text) instead of ticks, and a title."""
    base = HEIGHT - BOTTOM
    return (
        rule(LEFT, base, WIDTH - RIGHT, base, "axis")
        + "".join(text_at(frame.px(x), base + 17, name, "middle") for x, name in labels)
        + text_at((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 5, title, "middle title")
    )


def y_axis(frame: ChartFrame, values: Sequence[float], label: Callable[[float], str] = compact) -> str:
    """Draw horizontal grid lines at `values`, with labels formatted by `label`."""
    factor, factor_text = _axis_factor(values) if label is compact else (1.0, "")
    return factor_text + "".join(
        rule(LEFT, frame.py(y), WIDTH - RIGHT, frame.py(y), "grid")
        + text_at(LEFT - 7, frame.py(y) + 4, name, "end")
        for y, name in zip(values, tick_labels([y / factor for y in values], label), strict=True)
    )


def _axis_factor(values: Sequence[float]) -> tuple[float, str]:
    """Return the power of ten that divides small labels, and its text; 1 and "" for larger labels."""
    largest = max(map(abs, values), default=0.0)
    if not 0 < largest < _MIN_TICK:
        return 1.0, ""
    power = math.floor(math.log10(largest))
    return 10.0**power, text_at(LEFT + 4, TOP - 2, f"\u00d7 1e\u2212{-power}", "start")


def tick_labels(values: Sequence[float], label: Callable[[float], str] = compact) -> list[str]:
    """Label the ticks of an axis, with equally many decimals, enough to distinguish adjacent ticks."""
    labels = [label(value) for value in values]
    if len(set(labels)) < len(labels):  # adjacent ticks differ in later digits only
        scale, unit = (100, " %") if labels[0].endswith("%") else (1, "")
        labels = [minus(f"{scale * value:.6g}{unit}") for value in values]
    matches = [_NUMBER.fullmatch(text) for text in labels]
    decimals = max((len(match[2]) for match in matches if match), default=0)
    if not decimals or not all(matches):  # nothing to pad, or a label such as 12k
        return labels
    return [f"{match[1]}.{match[2]:0<{decimals}}{match[3] or ''}" for match in matches if match]


def line(frame: ChartFrame, points: Sequence[tuple[float, float]], css_class: str) -> str:
    """Draw a line through points (x, y)."""
    path = " L".join(f"{frame.px(x)} {frame.py(y)}" for x, y in points)
    return f'<path class="line {css_class}" d="M{path}"/>'


def area(frame: ChartFrame, histogram: Histogram, css_class: str) -> str:
    """Draw a histogram, as proportions of its total, as a stepped area."""
    path = " L".join(f"{frame.px(x)} {frame.py(count / histogram.total)}" for x, count in outline(histogram))
    return f'<path class="area {css_class}" d="M{path}Z"/>'


def outline(histogram: Histogram) -> list[tuple[float, int]]:
    """Return the corners (value, count) of a histogram's stepped area, without empty bins at its ends."""
    low, high = occupied_range(histogram)
    corners: list[tuple[float, int]] = []
    for left, right, count in zip(histogram.edges, histogram.edges[1:], histogram.counts, strict=False):
        if left >= low and right <= high:
            corners += [(left, count), (right, count)]
    return [(low, 0), *corners, (high, 0)]


def rule(x1: float, y1: float, x2: float, y2: float, css_class: str) -> str:
    """Draw a straight line between two pixels."""
    return f'<line class="{css_class}" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>'


def text_at(x: float, y: float, text: str, css_class: str) -> str:
    """Draw text at a pixel; CSS classes set its colour and whether it starts, ends or is centred there."""
    return f'<text class="{css_class}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def text_anchor(x: float) -> str:
    """Return the CSS class (start, middle or end) that keeps a label at pixel x inside the chart."""
    return "start" if x < WIDTH / 3 else "end" if x > 2 * WIDTH / 3 else "middle"


def dot(x: float, y: float, css_class: str, radius: float, title: str) -> str:
    """Draw a circle at a pixel, with a tooltip."""
    return f'<circle class="{css_class}" cx="{x}" cy="{y}" r="{radius}"><title>{title}</title></circle>'


def bar(css_class: str, x: float, width: float, y: tuple[float, float], title: str) -> str:
    """Draw a rectangle from y[0] (top) to y[1] (bottom), all in pixels, with a tooltip."""
    size = f'x="{x:.1f}" y="{y[0]}" width="{width:.1f}" height="{y[1] - y[0]:.1f}"'
    return f'<rect class="{css_class}" {size}><title>{title}</title></rect>'


def cosine_areas(histograms: Sequence[tuple[str, Histogram]], headroom: float, items: str) -> Markup:
    """Draw a histogram of cosines of random pairs of `items` for each space, with a line at its mean.

    Args:
        histograms: pairs of a CSS class and a histogram; at least one.
        headroom: height of the y axis as a multiple of the highest bin.
        items: "texts" or "sentences".
    """
    ends = [edge for _, histogram in histograms for edge in occupied_range(histogram)]
    highest = max(max(histogram.counts) / histogram.total for _, histogram in histograms)
    frame = ChartFrame((min(*ends, -0.1), max(*ends, 0.1)), (0, headroom * highest))
    return svg(
        f"Cosines of random pairs of {items}",
        x_axis(frame, ticks(*frame.x, 6), f"cosine of two random {items}"),
        y_axis(frame, ticks(*frame.y, 4), percent),
        *(area(frame, histogram, css_class) for css_class, histogram in histograms),
        *(
            rule(
                frame.px(histogram.mean), TOP, frame.px(histogram.mean), HEIGHT - BOTTOM, f"mean {css_class}"
            )
            for css_class, histogram in histograms
        ),
    )


def occupied_range(histogram: Histogram) -> tuple[float, float]:
    """Return the left end of the first bin that is not empty, and the right end of the last one."""
    bins = [number for number, count in enumerate(histogram.counts) if count] or [0]
    return histogram.edges[bins[0]], histogram.edges[bins[-1] + 1]


def thinned_indices(count: int) -> list[int]:
    """Return about MAX_LINE_POINTS evenly spaced indices of `count` points, with the first and the last."""
    stride = max(1, count // MAX_LINE_POINTS)
    return sorted({*range(0, count, stride), count - 1})


def points_by_rank(values: Sequence[float]) -> list[tuple[float, float]]:
    """Return the points (rank, value) of a line through descending values, thinned if they are many."""
    return [(index + 1, values[index]) for index in thinned_indices(len(values))]


def without_overlap(frame: ChartFrame, values: Sequence[float]) -> list[float]:
    """Select the ascending values whose labels do not overlap the label of an earlier one."""
    kept: list[float] = []
    for value in values:
        if not kept or frame.px(value) - frame.px(kept[-1]) >= _MIN_LABEL_GAP:
            kept.append(value)
    return kept
