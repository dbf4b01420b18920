"""Charts of the release report."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from pipeline.charts.frame import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Frame,
    area,
    compact,
    line,
    log_ticks,
    occupied,
    percent,
    rule,
    spaced,
    svg,
    thinned,
    ticks,
    words_at,
    x_axis,
    y_axis,
)
from pipeline.stats.sample import Histogram

MAX_BARS = 48
_APART_X, _APART_Y = 26, 13  # pixels that the label of a dot takes


def spectrum_chart(raw: Sequence[float], whitened: Sequence[float] | None) -> Markup:
    """Singular values, largest first, as shares of the largest: one line each."""
    components = max(len(raw), len(whitened or ()))
    frame = Frame((1, components), (0, 1))
    lines = line(frame, thinned(raw), "raw") + (
        line(frame, thinned(whitened), "whitened") if whitened else ""
    )
    axes = x_axis(frame, [1, *ticks(1, components, 4)], "component, by size") + y_axis(frame, [0, 0.5, 1])
    return svg(axes + lines, "Singular values as shares of the largest, by rank")


def cosine_chart(raw: Histogram, whitened: Histogram | None) -> Markup:
    """Shares of random pairs by cosine: one stepped area each, a line at each mean."""
    shown = [("raw", raw), *([("whitened", whitened)] if whitened else [])]
    ends = [edge for _, one in shown for edge in occupied(one)]
    frame = Frame(
        (min(*ends, -0.1), max(*ends, 0.1)), (0, 1.06 * max(max(one.counts) / one.total for _, one in shown))
    )
    areas = "".join(area(frame, one, name) for name, one in shown)
    means = "".join(
        rule(frame.px(one.mean), TOP, frame.px(one.mean), HEIGHT - BOTTOM, f"mean {name}")
        for name, one in shown
    )
    axes = x_axis(frame, ticks(*frame.x, 6), "cosine of two random texts") + y_axis(
        frame, ticks(*frame.y, 4), percent
    )
    return svg(axes + areas + means, "Cosines of random pairs of texts")


def length_chart(lengths: Histogram, limit: int) -> Markup:
    """Texts by their number of tokens; those beyond the limit, which are cut, in one bar at the right."""
    bars = _bars(lengths, limit)
    frame = Frame((0, bars[-1][1]), (0, 1.06 * max(count for *_, count in bars)))
    drawn = "".join(
        _bar(frame, low, high, count, "cut" if low > limit else "lengths") for low, high, count in bars
    )
    axes = x_axis(frame, ticks(0, min(limit, bars[-1][1]), 6), "tokens in a text") + y_axis(
        frame, ticks(*frame.y, 4), compact
    )
    if lengths.counts[-1]:
        x = frame.px(limit)
        drawn += rule(x, TOP, x, HEIGHT - BOTTOM, "target") + words_at(
            x - 5, TOP + 9, f"cut at {limit}", "end note"
        )
    return svg(axes + drawn, "Texts by number of tokens")


class Point(NamedTuple):
    """A search effort, the recall@10 that it reaches, and milliseconds of one query."""

    effort: int
    recall: float
    query_ms: float


def recall_chart(
    points: Sequence[Point], chosen: int | None, target: float | None, effort: str = "nprobe"
) -> Markup:
    """Recall@10 against milliseconds (logarithmic), a dot for each search effort; the target as a dashed line and the chosen point marked."""
    recalls, times = [point.recall for point in points], [point.query_ms for point in points]
    low = max(0.0, math.floor((min(recalls + ([target] if target is not None else [])) - 0.02) * 20) / 20)
    frame = Frame((0.9 * min(times), 1.1 * max(times)), (low, 1.0), log_x=True)
    drawn = line(frame, [(point.query_ms, point.recall) for point in points], "whitened") + _efforts(
        frame, points, chosen
    )
    drawn += "".join(_dot(frame, point, point.effort == chosen, effort) for point in points)
    if target is not None:
        drawn = rule(LEFT, frame.py(target), WIDTH - RIGHT, frame.py(target), "target") + drawn
        drawn += words_at(LEFT + 4, frame.py(target) - 5, f"target {percent(target)}", "start note")
    title = f"milliseconds for one query; beside the dots: {effort}"
    axes = x_axis(frame, spaced(frame, log_ticks(*frame.x)), title) + y_axis(frame, ticks(low, 1, 4), percent)
    return svg(axes + drawn, f"Recall at 10 against milliseconds, by {effort}")


def choice_chart(points: Sequence[tuple[int, float]], chosen: int, setting: str) -> Markup:
    """A figure, larger being better, for each value of a setting, the chosen one marked. k runs logarithmically, what may be 0 does not."""
    places, figures = [place for place, _ in points], [figure for _, figure in points]
    span = (max(figures) - min(figures)) or abs(max(figures)) or 1.0
    high = max(figures) + 0.2 * span  # room for the label above the best
    frame = Frame(
        (places[0], max(places[-1], places[0] + 1)), (min(figures) - 0.05 * span, high), log_x=places[0] > 0
    )
    drawn = line(frame, points, "whitened")
    for place, figure in points:
        best = place == chosen
        words = f"{setting} {place}: {figure:.4f}"
        drawn += f'<circle class="dot{" chosen" * best}" cx="{frame.px(place)}" cy="{frame.py(figure)}" r="{5 if best else 2.6}"><title>{words}</title></circle>'
        if best:
            side = (
                "start"
                if frame.px(place) < WIDTH / 3
                else "end"
                if frame.px(place) > 2 * WIDTH / 3
                else "middle"
            )
            drawn += words_at(frame.px(place), frame.py(figure) - 11, words, f"{side} chosen")
    axes = x_axis(frame, spaced(frame, places), setting) + y_axis(frame, ticks(*frame.y, 4))
    return svg(axes + drawn, f"Figures for {setting}, the chosen one marked")


def _bar(frame: Frame, low: float, high: float, count: int, name: str) -> str:
    x, width, y = frame.px(low) + 0.5, max(0.6, frame.px(high) - frame.px(low) - 1), frame.py(count)
    title = (
        f"{low:g} to {high - 1:g} tokens: {count:,} texts" if name == "lengths" else f"cut: {count:,} texts"
    )
    return f'<rect class="{name}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{HEIGHT - BOTTOM - y:.1f}"><title>{title}</title></rect>'


def _bars(lengths: Histogram, limit: int) -> list[tuple[float, float, int]]:
    """(from, to, count) of the occupied part, neighbours joined until at most 48 are left; the last bin (beyond the limit) stays apart."""
    last = max((place for place, count in enumerate(lengths.counts[:-1]) if count), default=0) + 1
    if lengths.counts[-1]:
        last = len(lengths.counts) - 1
    joined = -(-last // MAX_BARS)
    starts = range(0, last, joined)
    bars = [
        (
            lengths.edges[at],
            lengths.edges[min(at + joined, last)],
            sum(lengths.counts[at : min(at + joined, last)]),
        )
        for at in starts
    ]
    if lengths.counts[-1]:
        bars.append(
            (
                limit + 1,
                limit + 1 + max(joined * (lengths.edges[1] - lengths.edges[0]), limit / 30),
                lengths.counts[-1],
            )
        )
    return bars


def _efforts(frame: Frame, points: Sequence[Point], chosen: int | None) -> str:
    """The effort of each dot, below it to the right, as far as they do not run into each other; that of the chosen one always."""
    shown: list[tuple[float, float]] = []
    drawn = ""
    for point in sorted(points, key=lambda point: point.effort != chosen):
        x, y = frame.px(point.query_ms), frame.py(point.recall)
        if all(abs(x - other_x) >= _APART_X or abs(y - other_y) >= _APART_Y for other_x, other_y in shown):
            drawn += words_at(x + 6, y + 14, f"{point.effort:,}", "start")
            shown.append((x, y))
    return drawn


def _dot(frame: Frame, point: Point, chosen: bool, effort: str) -> str:
    x, y = frame.px(point.query_ms), frame.py(point.recall)
    words = f"{effort} {point.effort}: {percent(point.recall)}, {point.query_ms:.3g} ms"
    if not chosen:
        return f'<circle class="dot" cx="{x}" cy="{y}" r="2.6"><title>{words}</title></circle>'
    label = words_at(
        WIDTH - RIGHT - 4, HEIGHT - BOTTOM - 10, words, "end chosen"
    )  # the corner that a rising curve leaves free
    return f'<circle class="dot chosen" cx="{x}" cy="{y}" r="5"><title>{words}</title></circle>{label}'
