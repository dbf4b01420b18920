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
    ChartFrame,
    bar,
    compact,
    cosine_areas,
    dot,
    line,
    log_ticks,
    percent,
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
from pipeline.stats.sample import Histogram

MAX_BARS = 48
_LABEL_WIDTH, _LABEL_HEIGHT = 26, 13  # pixels of a dot's label


def spectrum_chart(raw: Sequence[float], whitened: Sequence[float] | None) -> Markup:
    """Draw singular values, largest first, divided by the largest: one line each."""
    components = max(len(raw), len(whitened or ()))
    frame = ChartFrame((1, components), (0, 1))
    return svg(
        "Singular values relative to the largest, by rank",
        x_axis(frame, [1, *ticks(1, components, 4)], "component, by size"),
        y_axis(frame, [0, 0.5, 1]),
        line(frame, thin_ranks(raw), "raw"),
        line(frame, thin_ranks(whitened), "whitened") if whitened else "",
    )


def cosine_chart(raw: Histogram, whitened: Histogram | None) -> Markup:
    """Draw histograms of the cosines of random pairs, with a line at each mean."""
    return cosine_areas([("raw", raw), *([("whitened", whitened)] if whitened else [])], 1.06, "texts")


def length_chart(lengths: Histogram, limit: int) -> Markup:
    """Draw texts by their number of tokens; truncated texts are one bar at the right."""
    bars = _bars(lengths, limit)
    frame = ChartFrame((0, bars[-1][1]), (0, 1.06 * max(count for *_, count in bars)))
    x = frame.px(limit)
    cut = (
        rule(x, TOP, x, HEIGHT - BOTTOM, "target"),
        text_at(x - 5, TOP + 9, f"cut at {limit}", "end note"),
    )
    return svg(
        "Texts by number of tokens",
        x_axis(frame, ticks(0, min(limit, bars[-1][1]), 6), "tokens in a text"),
        y_axis(frame, ticks(*frame.y, 4), compact),
        *(_bar(frame, low, high, count, "cut" if low > limit else "lengths") for low, high, count in bars),
        *(cut if lengths.counts[-1] else ()),
    )


class RecallPoint(NamedTuple):
    """Search effort, its recall@10, and milliseconds per query."""

    effort: int
    recall: float
    query_ms: float


def recall_chart(
    points: Sequence[RecallPoint], chosen: int | None, target: float | None, effort: str = "nprobe"
) -> Markup:
    """Draw recall@10 against milliseconds (logarithmic), one dot per search effort.

    The target is a dashed line; the chosen point is marked.
    """
    recalls, times = [point.recall for point in points], [point.query_ms for point in points]
    low = max(0.0, math.floor((min(recalls + ([target] if target is not None else [])) - 0.02) * 20) / 20)
    frame = ChartFrame((0.9 * min(times), 1.1 * max(times)), (low, 1.0), log_x=True)
    drawn = line(frame, [(point.query_ms, point.recall) for point in points], "whitened") + _efforts(
        frame, points, chosen
    )
    drawn += "".join(_dot(frame, point, point.effort == chosen, effort) for point in points)
    if target is not None:
        drawn = rule(LEFT, frame.py(target), WIDTH - RIGHT, frame.py(target), "target") + drawn
        drawn += text_at(LEFT + 4, frame.py(target) - 5, f"target {percent(target)}", "start note")
    label = f"milliseconds per query; next to the dots: {effort}"
    return svg(
        f"Recall at 10 against milliseconds, by {effort}",
        x_axis(frame, without_overlap(frame, log_ticks(*frame.x)), label),
        y_axis(frame, ticks(low, 1, 4), percent),
        drawn,
    )


def choice_chart(points: Sequence[tuple[int, float]], chosen: int, setting: str) -> Markup:
    """Draw a score for each value of a setting, with the chosen value marked; larger is better.

    The axis is logarithmic unless the setting may be 0.
    """
    values, scores = [value for value, _ in points], [score for _, score in points]
    span = (max(scores) - min(scores)) or abs(max(scores)) or 1.0
    high = max(scores) + 0.2 * span  # room for the label above the best
    frame = ChartFrame(
        (values[0], max(values[-1], values[0] + 1)), (min(scores) - 0.05 * span, high), log_x=values[0] > 0
    )
    drawn = line(frame, points, "whitened")
    for value, score in points:
        best, x, y = value == chosen, frame.px(value), frame.py(score)
        words = f"{setting} {value}: {score:.4f}"
        drawn += dot(x, y, "dot" + " chosen" * best, 5 if best else 2.6, words)
        if best:
            drawn += text_at(x, y - 11, words, f"{side(x)} chosen")
    return svg(
        f"Scores for {setting}, the chosen one marked",
        x_axis(frame, without_overlap(frame, values), setting),
        y_axis(frame, ticks(*frame.y, 4)),
        drawn,
    )


def _bar(frame: ChartFrame, low: float, high: float, count: int, name: str) -> str:
    x, width = frame.px(low) + 0.5, max(0.6, frame.px(high) - frame.px(low) - 1)
    what = "cut" if name == "cut" else f"{low:g} to {high - 1:g} tokens"
    return bar(name, x, width, (frame.py(count), HEIGHT - BOTTOM), f"{what}: {count:,} texts")


def _bars(lengths: Histogram, limit: int) -> list[tuple[float, float, int]]:
    """Return (from, to, count) of at most 48 bars, joining neighbours.

    The bin beyond the limit stays separate.
    """
    last = (
        len(lengths.counts) - 1
        if lengths.counts[-1]
        else max((number for number, count in enumerate(lengths.counts) if count), default=0) + 1
    )
    joined = -(-last // MAX_BARS)
    ends = [(at, min(at + joined, last)) for at in range(0, last, joined)]
    bars = [(lengths.edges[at], lengths.edges[end], sum(lengths.counts[at:end])) for at, end in ends]
    if lengths.counts[-1]:
        width = max(joined * (lengths.edges[1] - lengths.edges[0]), limit / 30)
        bars.append((limit + 1, limit + 1 + width, lengths.counts[-1]))
    return bars


def _efforts(frame: ChartFrame, points: Sequence[RecallPoint], chosen: int | None) -> str:
    """Draw the effort of each dot, if it does not overlap another one; that of the chosen dot always."""
    shown: list[tuple[float, float]] = []
    drawn = ""
    for point in sorted(points, key=lambda point: point.effort != chosen):
        x, y = frame.px(point.query_ms), frame.py(point.recall)
        if all(
            abs(x - other_x) >= _LABEL_WIDTH or abs(y - other_y) >= _LABEL_HEIGHT
            for other_x, other_y in shown
        ):
            drawn += text_at(x + 6, y + 14, f"{point.effort:,}", "start")
            shown.append((x, y))
    return drawn


def _dot(frame: ChartFrame, point: RecallPoint, chosen: bool, effort: str) -> str:
    x, y = frame.px(point.query_ms), frame.py(point.recall)
    words = f"{effort} {point.effort}: {percent(point.recall)}, {point.query_ms:.3g} ms"
    if not chosen:
        return dot(x, y, "dot", 2.6, words)
    # The lower right corner is free, because the curve rises.
    label = text_at(WIDTH - RIGHT - 4, HEIGHT - BOTTOM - 10, words, "end chosen")
    return dot(x, y, "dot chosen", 5, words) + label
