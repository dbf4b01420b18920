"""Charts of the geometry of several spaces, each with one colour in all charts (CSS classes s0 to s5)."""

import math
from collections.abc import Sequence
from itertools import pairwise

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
    cosine_areas,
    dot,
    line,
    minus,
    named_x_axis,
    outline,
    percent,
    rule,
    svg,
    text_at,
    thin_ranks,
    ticks,
    without_overlap,
    x_axis,
    y_axis,
)
from pipeline.stats.sample import Histogram
from pipeline.stats.space import EditBin

COLOURS = 6
_DECADES = 3  # of singular values: below a thousandth of the largest, a direction is negligible
_LINE_HEIGHT = 12.5  # pixels between two lines of text

Points = Sequence[tuple[float, float]]


def colour(number: int) -> str:
    """Return the CSS class of a series."""
    return f"s{number % COLOURS}"


def layer_chart(curves: Sequence[Points], metric: str) -> Markup:
    """Draw a metric by layer, one line per encoder, with the value in the last layer.

    Layer 0 is the output of the embedding layer.
    """
    values = [y for curve in curves for _, y in curve]
    low, high = min(0.0, *values), max(0.0, *values)
    room = 0.08 * ((high - low) or 1)
    layers = sorted({int(x) for curve in curves for x, _ in curve})
    frame = ChartFrame((0, 1.13 * max(layers[-1], 1)), (low - room * (low < 0), high + room))
    return svg(
        f"{metric} by layer",
        x_axis(frame, without_overlap(frame, layers), "layer"),
        y_axis(frame, ticks(*frame.y, 5)),
        *(
            line(frame, curve, colour(number)) + _dots(frame, curve, colour(number))
            for number, curve in enumerate(curves)
        ),
        _labels([_last(frame, curve, colour(number)) for number, curve in enumerate(curves)]),
    )


def spectra_chart(spectra: Sequence[Sequence[float]]) -> Markup:
    """Draw singular values divided by the largest, by rank, on a logarithmic axis."""
    frame = ChartFrame((1, max(2, *map(len, spectra))), (-_DECADES, 0))
    return svg(
        "Singular values relative to the largest, by rank, logarithmic",
        x_axis(frame, [1, *ticks(1, frame.x[1], 4)], "component, by size"),
        y_axis(frame, range(-_DECADES, 1), lambda power: f"{10.0**power:g}"),
        *(line(frame, _shown(spectrum), colour(number)) for number, spectrum in enumerate(spectra)),
    )


def cosines_chart(histograms: Sequence[Histogram]) -> Markup:
    """Draw histograms of the cosines of random pairs, one area per space, with a line at each mean."""
    return cosine_areas([(colour(number), one) for number, one in enumerate(histograms)], 1.12, "sentences")


def bands_chart(bands: Sequence[Histogram], low: float, number: int) -> Markup:
    """Draw cosines of pairs by human score, one row per integer score, with each row's mean.

    Args:
        bands: a histogram per score; the highest score is on top.
        low: left end of the axis.
        number: index of the series, for its colour.
    """
    frame = ChartFrame((low, 1), (0, 1))
    highest = max((count / band.total for band in bands if band.total for count in band.counts), default=1.0)
    step = (HEIGHT - TOP - BOTTOM) / len(bands)
    return svg(
        "Cosines of pairs by human score",
        x_axis(frame, ticks(low, 1, 6), "cosine"),
        *(
            _row(frame, band, HEIGHT - BOTTOM - index * step, 0.94 * step / highest, colour(number))
            for index, band in enumerate(bands)
        ),
        *(
            text_at(LEFT - 7, HEIGHT - BOTTOM - index * step - 4, f"{index} – {index + 1}", "end")
            for index in range(len(bands))
        ),
    )


def hubs_chart(found: Sequence[Sequence[int]], k: int) -> Markup:
    """Draw the proportions of sentences by how often they are a neighbour of others.

    In a space without hubs all sentences are in the middle.

    Args:
        found: for each space, the number of sentences that are a neighbour 0, 1, 2 ... times.
        k: neighbours of each sentence.
    """
    edges = [0, 1, max(2, k // 2), 2 * k, 5 * k]
    names = ["never", *(f"{left}–{right - 1}" for left, right in pairwise(edges[1:])), f"{edges[-1]}+"]
    proportions = [
        [sum(one[left:right]) / sum(one) for left, right in zip(edges, [*edges[1:], None], strict=True)]
        for one in found
    ]
    frame = ChartFrame((0, len(names)), (0, 1.1 * max(max(each) for each in proportions)))
    places = [(index + 0.5, name) for index, name in enumerate(names)]
    return svg(
        "Sentences by how often they are a neighbour",
        y_axis(frame, ticks(*frame.y, 5), percent),
        *(
            _bar(frame, index, number, len(proportions), each[index])
            for number, each in enumerate(proportions)
            for index in range(len(names))
        ),
        named_x_axis(frame, places, f"times among the {k} nearest of others"),
    )


def edits_chart(edits: Sequence[Sequence[EditBin]]) -> Markup:
    """Draw the mean rank of pairs in bins of edit distance: by cosine, and dashed by human score."""
    bins = edits[0]
    values = [rank for each in edits for one in each for rank in (one.similarity, one.gold)]
    frame = ChartFrame((0.5, len(bins) + 0.5), (max(0.0, min(values) - 0.06), min(1.0, max(values) + 0.06)))
    names = [(index + 1.0, f"{one.distance:.0f}") for index, one in enumerate(bins)]
    return svg(
        "Rank by cosine and by human score, by edit distance",
        y_axis(frame, ticks(*frame.y, 4), percent),
        named_x_axis(frame, names, "edit distance of the pair, in bins of equal size"),
        *(
            line(frame, [(index + 1, one.similarity) for index, one in enumerate(each)], colour(number))
            for number, each in enumerate(edits)
        ),
        line(frame, [(index + 1, one.gold) for index, one in enumerate(bins)], "people"),
    )


def plane_chart(points: Sequence[tuple[float, float]]) -> Markup:
    """Draw (uniformity, alignment) of each space as a point; lower left is better."""
    frame = ChartFrame(_padded([x for x, _ in points]), _padded([y for _, y in points]))
    return svg(
        "Alignment against uniformity",
        x_axis(frame, ticks(*frame.x, 5), "uniformity: spread of all sentences"),
        y_axis(frame, ticks(*frame.y, 5)),
        text_at(LEFT + 6, HEIGHT - BOTTOM - 7, "↙ better", "start soft"),
        *(
            dot(
                frame.px(x),
                frame.py(y),
                f"point {colour(number)}",
                6,
                f"uniformity {three_digits(x)}, alignment {three_digits(y)}",
            )
            for number, (x, y) in enumerate(points)
        ),
        _labels([_beside(frame, point, colour(number)) for number, point in enumerate(points)]),
    )


def three_digits(value: float) -> str:
    """Format with three digits and a true minus: 0.065, −3.62, 216."""
    decimals = next((count for count, bound in enumerate((100, 10, 1)) if abs(value) >= bound), 3)
    text = f"{value:.{decimals}f}"
    return minus(text) if float(text) else text.removeprefix("-")


def _shown(spectrum: Sequence[float]) -> Points:
    """Return ranks and powers of ten, cut at the bottom of the chart."""
    return [(rank, math.log10(max(value, 10.0**-_DECADES))) for rank, value in thin_ranks(spectrum)]


def _dots(frame: ChartFrame, points: Points, name: str) -> str:
    return "".join(
        dot(frame.px(x), frame.py(y), f"point {name}", 2.8, f"layer {x:g}: {three_digits(y)}")
        for x, y in points
    )


def _labels(wanted: Sequence[tuple[float, float, str, str]]) -> str:
    """Draw labels (x, y, text, class), moving them apart vertically so that they do not overlap."""
    order = sorted(range(len(wanted)), key=lambda number: wanted[number][1])
    heights = [wanted[number][1] for number in order]
    for at in range(1, len(heights)):
        heights[at] = max(heights[at], heights[at - 1] + _LINE_HEIGHT)
    bottom = HEIGHT - BOTTOM - 3.0
    for at in reversed(range(len(heights))):
        heights[at] = min(heights[at], bottom)
        bottom = heights[at] - _LINE_HEIGHT
    return "".join(
        text_at(wanted[number][0], y, *wanted[number][2:]) for number, y in zip(order, heights, strict=True)
    )


def _row(frame: ChartFrame, band: Histogram, base: float, scale: float, name: str) -> str:
    """Draw one stepped area on `base`, with its mean."""
    ground = rule(LEFT, base, WIDTH - RIGHT, base, "grid")
    if not band.total:
        return ground
    path = " L".join(
        f"{frame.px(max(x, frame.x[0]))} {base - scale * count / band.total:.1f}"
        for x, count in outline(band)
    )
    area = (
        f'<path class="area {name}" d="M{path}Z">'
        f"<title>{band.total:,} pairs, mean {three_digits(band.mean)}</title></path>"
    )
    at = frame.px(max(band.mean, frame.x[0]))
    x, side = (at - 5, "end") if at > WIDTH - RIGHT - 36 else (at + 5, "start")
    mark = rule(at, base, at, round(base - 16, 1), f"centre {name}")
    return ground + area + mark + text_at(x, base - 4, minus(f"{band.mean:.2f}"), f"{name} value {side}")


def _bar(frame: ChartFrame, index: int, number: int, count: int, proportion: float) -> str:
    width = 0.8 / count
    left, right = (frame.px(index + 0.1 + width * (number + side)) for side in (0, 1))
    y, name = frame.py(proportion), colour(number)
    drawn = bar(name, left + 0.5, max(0.6, right - left - 1), (y, HEIGHT - BOTTOM), percent(proportion))
    if right - left <= 14:
        return drawn
    return drawn + text_at((left + right) / 2, y - 4, f"{100 * proportion:.0f}", f"{name} value middle")


def _padded(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    room = max(0.35 * (high - low), 0.08 * max(abs(low), abs(high)), 0.02)
    return low - room, high + room


def _beside(frame: ChartFrame, point: tuple[float, float], name: str) -> tuple[float, float, str, str]:
    """Return the label of a point, on the side with more room."""
    x, y = frame.px(point[0]), frame.py(point[1]) + 4
    to_left = x > (LEFT + WIDTH) / 2
    return (
        x + (-11 if to_left else 11),
        y,
        f"{three_digits(point[0])}, {three_digits(point[1])}",
        f"{name} value {'end' if to_left else 'start'}",
    )


def _last(frame: ChartFrame, curve: Points, name: str) -> tuple[float, float, str, str]:
    """Return the label of a curve's end."""
    x, y = curve[-1]
    return frame.px(x) + 7, frame.py(y) + 4, three_digits(y), f"{name} value start"
