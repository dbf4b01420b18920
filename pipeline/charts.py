"""Charts as inline SVG: they follow the colours of the page (light, dark, print), need no script, and weigh a few kilobytes each."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from pipeline.stats.sample import Histogram

WIDTH, HEIGHT = 420, 230                    # about the width of a phone, and of half a page: text stays near 12 px on both
LEFT, RIGHT, TOP, BOTTOM = 44, 10, 12, 42
MAX_BARS = 48
MAX_LINE_POINTS = 240


@dataclass(frozen=True)
class Frame:
    """Maps values to places: x and y are the ranges shown; log_x spaces x by its logarithm."""

    x: tuple[float, float]
    y: tuple[float, float]
    log_x: bool = False

    def px(self, value: float) -> float:
        scale: Callable[[float], float] = math.log if self.log_x else float
        low, high = scale(self.x[0]), scale(self.x[1])
        return round(LEFT + (WIDTH - LEFT - RIGHT) * (scale(value) - low) / ((high - low) or 1), 1)

    def py(self, value: float) -> float:
        low, high = self.y
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - low) / ((high - low) or 1), 1)


def spectrum_chart(raw: Sequence[float], whitened: Sequence[float] | None) -> Markup:
    """Singular values, largest first, as shares of the largest: one line each."""
    components = max(len(raw), len(whitened or ()))
    frame = Frame((1, components), (0, 1))
    lines = _line(frame, _thinned(raw), "raw") + (_line(frame, _thinned(whitened), "whitened") if whitened else "")
    axes = _x_axis(frame, [1, *ticks(1, components, 4)], "component, by size") + _y_axis(frame, [0, 0.5, 1])
    return _svg(axes + lines, "Singular values as shares of the largest, by rank")


def cosine_chart(raw: Histogram, whitened: Histogram | None) -> Markup:
    """Shares of random pairs by cosine: one stepped area each, a line at each mean."""
    shown = [("raw", raw), *([("whitened", whitened)] if whitened else [])]
    ends = [edge for _, one in shown for edge in _occupied(one)]
    frame = Frame((min(*ends, -0.1), max(*ends, 0.1)), (0, 1.06 * max(max(one.counts) / one.total for _, one in shown)))
    areas = "".join(_area(frame, one, name) for name, one in shown)
    means = "".join(_rule(frame.px(one.mean), TOP, frame.px(one.mean), HEIGHT - BOTTOM, f"mean {name}") for name, one in shown)
    axes = _x_axis(frame, ticks(*frame.x, 6), "cosine of two random texts") + _y_axis(frame, ticks(*frame.y, 4), percent)
    return _svg(axes + areas + means, "Cosines of random pairs of texts")


def length_chart(lengths: Histogram, limit: int) -> Markup:
    """Texts by their number of tokens; those beyond the limit, which are cut, in one bar at the right."""
    bars = _bars(lengths, limit)
    frame = Frame((0, bars[-1][1]), (0, 1.06 * max(count for *_, count in bars)))
    drawn = "".join(_bar(frame, low, high, count, "cut" if low > limit else "lengths") for low, high, count in bars)
    axes = _x_axis(frame, ticks(0, min(limit, bars[-1][1]), 6), "tokens in a text") + _y_axis(frame, ticks(*frame.y, 4), compact)
    if lengths.counts[-1]:
        x = frame.px(limit)
        drawn += _rule(x, TOP, x, HEIGHT - BOTTOM, "target") + _text(x - 5, TOP + 9, f"cut at {limit}", "end note")
    return _svg(axes + drawn, "Texts by number of tokens")


def recall_chart(points: Sequence[tuple[int, float]], chosen: int | None, target: float | None, effort: str = "nprobe") -> Markup:
    """Recall@10 against the search effort (logarithmic), the target as a dashed line and the chosen point marked."""
    recalls = [recall for _, recall in points] + ([target] if target is not None else [])
    low = max(0.0, math.floor((min(recalls) - 0.02) * 20) / 20)
    frame = Frame((points[0][0], max(points[-1][0], points[0][0] + 1)), (low, 1.0), log_x=True)
    drawn = _line(frame, points, "whitened") + "".join(_dot(frame, point, point[0] == chosen, effort) for point in points)
    if target is not None:
        drawn = _rule(LEFT, frame.py(target), WIDTH - RIGHT, frame.py(target), "target") + drawn
        drawn += _text(LEFT + 4, frame.py(target) - 5, f"target {percent(target)}", "start note")
    axes = _x_axis(frame, _spaced(frame, [place for place, _ in points]), "nprobe: lists visited by a query" if effort == "nprobe" else effort)
    return _svg(axes + _y_axis(frame, ticks(low, 1, 4), percent) + drawn, f"Recall at 10 against {effort}")


def ticks(low: float, high: float, count: int) -> list[float]:
    """Round numbers in [low, high], about `count` of them, in steps of 1, 2 or 5 times a power of ten."""
    if high <= low:
        return [low]
    rough = (high - low) / count
    power = 10 ** math.floor(math.log10(rough))
    step = next(times * power for times in (1, 2, 5, 10) if times * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(number * step, 10) for number in range(first, last + 1)]


def percent(share: float) -> str:
    """0.975 -> 97.5 %, 0.97 -> 97 %."""
    return f"{100 * share:.1f}".removesuffix(".0") + " %"


def compact(number: float) -> str:
    """At most four characters for an axis: 950, 12k, 1.5M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:.3g}{letter}"
    return f"{number:g}"


def _svg(content: str, label: str) -> Markup:
    return Markup(f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">{content}</svg>')


def _x_axis(frame: Frame, at: Sequence[float], title: str) -> str:
    base = HEIGHT - BOTTOM
    marks = "".join(_rule(frame.px(x), base, frame.px(x), base + 4, "axis") + _text(frame.px(x), base + 17, compact(x), "middle") for x in at)
    return _rule(LEFT, base, WIDTH - RIGHT, base, "axis") + marks + _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 5, title, "middle title")


def _y_axis(frame: Frame, at: Sequence[float], label: Callable[[float], str] = compact) -> str:
    lines = (_rule(LEFT, frame.py(y), WIDTH - RIGHT, frame.py(y), "grid") + _text(LEFT - 7, frame.py(y) + 4, label(y), "end") for y in at)
    return "".join(lines)


def _line(frame: Frame, points: Sequence[tuple[float, float]], name: str) -> str:
    return f'<path class="line {name}" d="M{" L".join(f"{frame.px(x)} {frame.py(y)}" for x, y in points)}"/>'


def _area(frame: Frame, histogram: Histogram, name: str) -> str:
    low, high = _occupied(histogram)
    corners = [(low, 0.0)]
    for left, right, count in zip(histogram.edges, histogram.edges[1:], histogram.counts, strict=False):
        if left >= low and right <= high:
            corners += [(left, count / histogram.total), (right, count / histogram.total)]
    path = " L".join(f"{frame.px(x)} {frame.py(y)}" for x, y in [*corners, (high, 0.0)])
    return f'<path class="area {name}" d="M{path}Z"/>'


def _bar(frame: Frame, low: float, high: float, count: int, name: str) -> str:
    x, width, y = frame.px(low) + 0.5, max(0.6, frame.px(high) - frame.px(low) - 1), frame.py(count)
    title = f"{low:g} to {high - 1:g} tokens: {count:,} texts" if name == "lengths" else f"cut: {count:,} texts"
    return f'<rect class="{name}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{HEIGHT - BOTTOM - y:.1f}"><title>{title}</title></rect>'


def _bars(lengths: Histogram, limit: int) -> list[tuple[float, float, int]]:
    """(from, to, count) of the occupied part, neighbours joined until at most 48 are left; the last bin (beyond the limit) stays apart."""
    last = max((place for place, count in enumerate(lengths.counts[:-1]) if count), default=0) + 1
    if lengths.counts[-1]:
        last = len(lengths.counts) - 1
    joined = -(-last // MAX_BARS)
    starts = range(0, last, joined)
    bars = [(lengths.edges[at], lengths.edges[min(at + joined, last)], sum(lengths.counts[at : min(at + joined, last)])) for at in starts]
    if lengths.counts[-1]:
        bars.append((limit + 1, limit + 1 + max(joined * (lengths.edges[1] - lengths.edges[0]), limit / 30), lengths.counts[-1]))
    return bars


def _dot(frame: Frame, point: tuple[int, float], chosen: bool, effort: str) -> str:
    x, y = frame.px(point[0]), frame.py(point[1])
    words = f"{effort} {point[0]}: {percent(point[1])}"
    if not chosen:
        return f'<circle class="dot" cx="{x}" cy="{y}" r="2.6"><title>{words}</title></circle>'
    label = _text(WIDTH - RIGHT - 4, HEIGHT - BOTTOM - 10, words, "end chosen")     # the corner that a rising curve leaves free
    return f'<circle class="dot chosen" cx="{x}" cy="{y}" r="5"><title>{words}</title></circle>{label}'


def _rule(x1: float, y1: float, x2: float, y2: float, name: str) -> str:
    return f'<line class="{name}" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>'


def _text(x: float, y: float, words: str, name: str) -> str:
    return f'<text class="{name}" x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'


def _occupied(histogram: Histogram) -> tuple[float, float]:
    """The ends of the bins that are not empty."""
    places = [place for place, count in enumerate(histogram.counts) if count] or [0]
    return histogram.edges[places[0]], histogram.edges[places[-1] + 1]


def _thinned(values: Sequence[float]) -> list[tuple[float, float]]:
    """(rank, value), at most about 240 of them, both ends included."""
    stride = max(1, len(values) // MAX_LINE_POINTS)
    return [(place + 1, values[place]) for place in sorted({*range(0, len(values), stride), len(values) - 1})]


def _spaced(frame: Frame, values: Sequence[int]) -> list[float]:
    """Those values whose labels do not run into each other."""
    kept: list[float] = []
    for value in values:
        if not kept or frame.px(value) - frame.px(kept[-1]) >= 34:
            kept.append(value)
    return kept
