"""Charts for the report of a release: spectrum, cosines, text lengths, recall, and tuned settings."""

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
    points_by_rank,
    rule,
    svg,
    text_anchor,
    text_at,
    ticks,
    without_overlap,
    x_axis,
    y_axis,
)
from pipeline.index.measure.metrics import CurvePoint
from pipeline.stats.sample import Histogram

MAX_BARS = 48  # bars of a histogram; more bins are joined
_LABEL_WIDTH, _LABEL_HEIGHT = 26, 13  # pixels of a dot's label


class _LengthBar(NamedTuple):
    """Number of texts with at least `low` and fewer than `high` tokens."""

    low: float
    high: float
    texts: int


def spectrum_chart(raw: Sequence[float], whitened: Sequence[float] | None) -> Markup:
    """Draw the singular values, divided by the largest, by rank; a second line if there is a transform."""
    components = max(len(raw), len(whitened or ()))
    frame = ChartFrame((1, components), (0, 1))
    return svg(
        "Singular values relative to the largest, by rank",
        x_axis(frame, [1, *ticks(1, components, 4)], "component, by size"),
        y_axis(frame, [0, 0.5, 1]),
        line(frame, points_by_rank(raw), "raw"),
        line(frame, points_by_rank(whitened), "accent") if whitened else "",
    )


def cosine_chart(raw: Histogram, whitened: Histogram | None) -> Markup:
    """Draw histograms of the cosines of random pairs, raw and transformed, with a line at each mean."""
    return cosine_areas([("raw", raw), *([("accent", whitened)] if whitened else [])], 1.06, "texts")


def length_chart(lengths: Histogram, limit: int) -> Markup:
    """Draw a histogram of texts by their number of tokens.

    Args:
        lengths: the histogram; its last bin has the texts that were truncated.
        limit: largest number of tokens of a text that is not truncated.
    """
    bars = _join_bins(lengths, limit)
    frame = ChartFrame((0, bars[-1].high), (0, 1.06 * max(length_bar.texts for length_bar in bars)))
    x = frame.px(limit)
    limit_line = (
        rule(x, TOP, x, HEIGHT - BOTTOM, "target"),
        text_at(x - 5, TOP + 9, f"cut at {limit}", "end note"),
    )
    return svg(
        "Texts by number of tokens",
        x_axis(frame, ticks(0, min(limit, bars[-1].high), 6), "tokens in a text"),
        y_axis(frame, ticks(*frame.y, 4), compact),
        *(_draw_bar(frame, length_bar, is_truncated=length_bar.low > limit) for length_bar in bars),
        *(limit_line if lengths.counts[-1] else ()),
    )


def recall_chart(
    points: Sequence[CurvePoint],
    chosen: int | None,
    target: float | None,
    effort: str = "nprobe",
    users: Sequence[CurvePoint] = (),
) -> Markup:
    """Draw recall@10 against milliseconds (logarithmic), one dot per search effort.

    Args:
        points: the measurements.
        chosen: effort of the dot to mark; None marks none.
        target: recall to draw as a dashed line; None draws none.
        effort: name of the search effort.
        users: the same for texts of users, which get a line of their own.
    """
    both = [*points, *users]
    recalls, times = [point.recall_at_10 for point in both], [point.query_ms for point in both]
    lowest = min(recalls if target is None else [*recalls, target])
    # the next multiple of 5 % below, with room for the lowest dot
    low = max(0.0, math.floor((lowest - 0.02) * 20) / 20)
    frame = ChartFrame((0.9 * min(times), 1.1 * max(times)), (low, 1.0), log_x=True)
    marks = line(frame, [(point.query_ms, point.recall_at_10) for point in users], "raw") if users else ""
    for point in users:
        title = (
            f"{effort} {point.effort}: {percent(point.recall_at_10)}, {point.query_ms:.3g} ms, gates.queries"
        )
        place = frame.px(point.query_ms), frame.py(point.recall_at_10)
        marks += dot(*place, "dot", 5 if point.effort == chosen else 2.6, title)
    marks += line(frame, [(point.query_ms, point.recall_at_10) for point in points], "accent")
    marks += _effort_labels(frame, points, chosen)
    marks += "".join(_recall_dot(frame, point, point.effort == chosen, effort) for point in points)
    if target is not None:
        marks = rule(LEFT, frame.py(target), WIDTH - RIGHT, frame.py(target), "target") + marks
        marks += text_at(LEFT + 4, frame.py(target) - 5, f"target {percent(target)}", "start note")
    label = f"milliseconds per query; next to the dots: {effort}"
    return svg(
        f"Recall at 10 against milliseconds, by {effort}",
        x_axis(frame, without_overlap(frame, log_ticks(*frame.x)), label),
        y_axis(frame, ticks(low, 1, 4), percent),
        marks,
    )


def choice_chart(points: Sequence[tuple[int, float]], chosen: int, setting: str) -> Markup:
    """Draw a score for each value of a setting, with the chosen value marked; larger is better.

    The axis of the values is logarithmic unless the first value is 0.
    """
    values, scores = [value for value, _ in points], [score for _, score in points]
    span = (max(scores) - min(scores)) or abs(max(scores)) or 1.0
    high = max(scores) + 0.2 * span  # room for the label above the chosen dot
    frame = ChartFrame(
        (values[0], max(values[-1], values[0] + 1)), (min(scores) - 0.05 * span, high), log_x=values[0] > 0
    )
    marks = line(frame, points, "accent")
    for value, score in points:
        x, y, title = frame.px(value), frame.py(score), f"{setting} {value}: {score:.4f}"
        if value == chosen:
            marks += dot(x, y, "dot chosen", 5, title) + text_at(x, y - 11, title, f"{text_anchor(x)} chosen")
        else:
            marks += dot(x, y, "dot", 2.6, title)
    return svg(
        f"Scores for {setting}, the chosen one marked",
        x_axis(frame, without_overlap(frame, values), setting),
        y_axis(frame, ticks(*frame.y, 4)),
        marks,
    )


def _draw_bar(frame: ChartFrame, lengths: _LengthBar, *, is_truncated: bool) -> str:
    x, width = frame.px(lengths.low) + 0.5, max(0.6, frame.px(lengths.high) - frame.px(lengths.low) - 1)
    label = "cut" if is_truncated else f"{lengths.low:g} to {lengths.high - 1:g} tokens"
    y = (frame.py(lengths.texts), HEIGHT - BOTTOM)
    return bar("cut" if is_truncated else "lengths", x, width, y, f"{label}: {lengths.texts:,} texts")


def _join_bins(lengths: Histogram, limit: int) -> list[_LengthBar]:
    """Join neighbouring bins, so that there are at most MAX_BARS bars and one for the truncated texts.

    Empty bins at the end are left out.
    """
    truncated = lengths.counts[-1]
    occupied = [number for number, count in enumerate(lengths.counts) if count]
    bins = len(lengths.counts) - 1 if truncated else max(occupied, default=0) + 1
    per_bar = -(-bins // MAX_BARS)
    bars = []
    for start in range(0, bins, per_bar):
        stop = min(start + per_bar, bins)
        bars.append(_LengthBar(lengths.edges[start], lengths.edges[stop], sum(lengths.counts[start:stop])))
    if truncated:
        width = max(per_bar * (lengths.edges[1] - lengths.edges[0]), limit / 30)
        bars.append(_LengthBar(limit + 1, limit + 1 + width, truncated))
    return bars


def _effort_labels(frame: ChartFrame, points: Sequence[CurvePoint], chosen: int | None) -> str:
    """Draw the effort beside each dot, unless it overlaps another label; the chosen dot always has one."""
    shown: list[tuple[float, float]] = []
    marks = ""
    for point in sorted(points, key=lambda point: point.effort != chosen):
        x, y = frame.px(point.query_ms), frame.py(point.recall_at_10)
        if all(
            abs(x - other_x) >= _LABEL_WIDTH or abs(y - other_y) >= _LABEL_HEIGHT
            for other_x, other_y in shown
        ):
            marks += text_at(x + 6, y + 14, f"{point.effort:,}", "start")
            shown.append((x, y))
    return marks


def _recall_dot(frame: ChartFrame, point: CurvePoint, is_chosen: bool, effort: str) -> str:
    """Draw the dot of one measurement; the chosen one is larger, and labelled in a corner."""
    x, y = frame.px(point.query_ms), frame.py(point.recall_at_10)
    title = f"{effort} {point.effort}: {percent(point.recall_at_10)}, {point.query_ms:.3g} ms"
    if not is_chosen:
        return dot(x, y, "dot", 2.6, title)
    # The lower right corner is free, because the curve rises.
    label = text_at(WIDTH - RIGHT - 4, HEIGHT - BOTTOM - 10, title, "end chosen")
    return dot(x, y, "dot chosen", 5, title) + label
