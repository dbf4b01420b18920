"""Charts for the geometry report: each space or encoder has one colour in all charts (CSS class s0 to s5)."""

import math
from collections.abc import Sequence
from itertools import chain, pairwise
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
    cosine_areas,
    dot,
    labelled_x_axis,
    line,
    minus,
    outline,
    percent,
    points_by_rank,
    rule,
    svg,
    text_at,
    ticks,
    without_overlap,
    x_axis,
    y_axis,
)
from pipeline.stats.sample import Histogram
from pipeline.stats.space import EditBin

COLOURS = 6  # number of colours before they repeat
_DECADES = 3  # powers of ten on the axis of singular values; smaller ones are negligible
_LINE_HEIGHT = 12.5  # pixels between two lines of text

Points = Sequence[tuple[float, float]]


class _Label(NamedTuple):
    """Text at a pixel."""

    x: float
    y: float
    text: str
    css_class: str


def colour(number: int) -> str:
    """Return the CSS class that colours series `number`."""
    return f"s{number % COLOURS}"


def layer_chart(curves: Sequence[Points], metric: str) -> Markup:
    """Draw a metric by layer, one line per encoder, labelled with its value in the last layer.

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
        _labels([_end_label(frame, curve, colour(number)) for number, curve in enumerate(curves)]),
    )


def spectra_chart(spectra: Sequence[Sequence[float]]) -> Markup:
    """Draw singular values divided by the largest, by rank, on a logarithmic axis."""
    frame = ChartFrame((1, max(2, *map(len, spectra))), (-_DECADES, 0))
    return svg(
        "Singular values relative to the largest, by rank, logarithmic",
        x_axis(frame, [1, *ticks(1, frame.x[1], 4)], "component, by size"),
        y_axis(frame, range(-_DECADES, 1), lambda power: f"{10.0**power:g}"),
        *(line(frame, _log_points(spectrum), colour(number)) for number, spectrum in enumerate(spectra)),
    )


def cosines_chart(histograms: Sequence[Histogram]) -> Markup:
    """Draw histograms of the cosines of random pairs, one area per space, with a line at each mean."""
    coloured = [(colour(number), histogram) for number, histogram in enumerate(histograms)]
    return cosine_areas(coloured, 1.12, "sentences")


def bands_chart(bands: Sequence[Histogram], low: float, number: int) -> Markup:
    """Draw cosines of pairs by human score: a row for each range (0 to 1, 1 to 2, ...), with its mean.

    Args:
        bands: a histogram for each row, from the bottom to the top.
        low: left end of the x axis.
        number: index of the series, for its colour.
    """
    frame = ChartFrame((low, 1), (0, 1))
    highest = max((count / band.total for band in bands if band.total for count in band.counts), default=1.0)
    row_height = (HEIGHT - TOP - BOTTOM) / len(bands)
    return svg(
        "Cosines of pairs by human score",
        x_axis(frame, ticks(low, 1, 6), "cosine"),
        *(
            _band_row(
                frame, band, HEIGHT - BOTTOM - index * row_height, 0.94 * row_height / highest, colour(number)
            )
            for index, band in enumerate(bands)
        ),
        *(
            text_at(LEFT - 7, HEIGHT - BOTTOM - index * row_height - 4, f"{index} – {index + 1}", "end")
            for index in range(len(bands))
        ),
    )


def hubs_chart(occurrences: Sequence[Sequence[int]], k: int) -> Markup:
    """Draw the proportions of sentences by how often they are among the k nearest of other sentences.

    In a space without hubs all sentences are in the middle bars.

    Args:
        occurrences: for each space, a list whose item i counts the sentences that are among the k nearest of
            exactly i other sentences.
        k: number of neighbours of each sentence.
    """
    edges = [0, 1, max(2, k // 2), 2 * k, 5 * k]
    names = ["never", *(f"{left}–{right - 1}" for left, right in pairwise(edges[1:])), f"{edges[-1]}+"]
    bins = list(zip(edges, [*edges[1:], None], strict=True))
    proportions = [[sum(counts[left:right]) / sum(counts) for left, right in bins] for counts in occurrences]
    frame = ChartFrame((0, len(names)), (0, 1.1 * max(map(max, proportions))))
    labels = [(index + 0.5, name) for index, name in enumerate(names)]
    return svg(
        "Sentences by how often they are a neighbour",
        y_axis(frame, ticks(*frame.y, 5), percent),
        *(
            _grouped_bar(frame, index, number, len(proportions), of_space[index])
            for number, of_space in enumerate(proportions)
            for index in range(len(names))
        ),
        labelled_x_axis(frame, labels, f"times among the {k} nearest of others"),
    )


def edits_chart(edits: Sequence[Sequence[EditBin]]) -> Markup:
    """Draw mean ranks of pairs by edit distance: a line of cosine ranks per space, human ranks dashed."""
    bins = edits[0]
    all_bins = chain.from_iterable(edits)
    values = [rank for edit_bin in all_bins for rank in (edit_bin.cosine_rank, edit_bin.gold_rank)]
    frame = ChartFrame((0.5, len(bins) + 0.5), (max(0.0, min(values) - 0.06), min(1.0, max(values) + 0.06)))
    labels = [(index + 1.0, f"{edit_bin.distance:.0f}") for index, edit_bin in enumerate(bins)]
    return svg(
        "Rank by cosine and by human score, by edit distance",
        y_axis(frame, ticks(*frame.y, 4), percent),
        labelled_x_axis(frame, labels, "edit distance of the pair, in bins of equal size"),
        *(
            line(frame, [(x, edit_bin.cosine_rank) for x, edit_bin in enumerate(series, 1)], colour(number))
            for number, series in enumerate(edits)
        ),
        line(frame, [(x, edit_bin.gold_rank) for x, edit_bin in enumerate(bins, 1)], "people"),
    )


def alignment_chart(points: Sequence[tuple[float, float]]) -> Markup:
    """Draw (uniformity, alignment) of each space as a point; lower left is better."""
    frame = ChartFrame(_padded_range([x for x, _ in points]), _padded_range([y for _, y in points]))
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
        _labels([_point_label(frame, point, colour(number)) for number, point in enumerate(points)]),
    )


def three_digits(value: float) -> str:
    """Format with three digits and a true minus: 0.065, −3.62, 216."""
    decimals = next((count for count, bound in enumerate((100, 10, 1)) if abs(value) >= bound), 3)
    text = f"{value:.{decimals}f}"
    return minus(text) if float(text) else text.removeprefix("-")


def _log_points(spectrum: Sequence[float]) -> Points:
    """Return (rank, decimal logarithm of the value), cut off at the bottom of the chart."""
    return [(rank, math.log10(max(value, 10.0**-_DECADES))) for rank, value in points_by_rank(spectrum)]


def _dots(frame: ChartFrame, points: Points, css_class: str) -> str:
    """Draw a dot for each layer of a curve."""
    return "".join(
        dot(frame.px(x), frame.py(y), f"point {css_class}", 2.8, f"layer {x:g}: {three_digits(y)}")
        for x, y in points
    )


def _labels(labels: Sequence[_Label]) -> str:
    """Draw labels, moved apart vertically so that they do not overlap."""
    ordered = sorted(labels, key=lambda label: label.y)
    heights = [label.y for label in ordered]
    for index in range(1, len(heights)):
        heights[index] = max(heights[index], heights[index - 1] + _LINE_HEIGHT)
    bottom = HEIGHT - BOTTOM - 3.0
    for index in reversed(range(len(heights))):
        heights[index] = min(heights[index], bottom)
        bottom = heights[index] - _LINE_HEIGHT
    return "".join(
        text_at(label.x, y, label.text, label.css_class) for label, y in zip(ordered, heights, strict=True)
    )


def _band_row(frame: ChartFrame, band: Histogram, base: float, scale: float, css_class: str) -> str:
    """Draw a histogram as a stepped area, with its mean.

    Args:
        frame: axes of the chart.
        band: the histogram.
        base: pixel of the row's bottom line.
        scale: height, in pixels, of a bin that has all pairs.
        css_class: class that colours the row.
    """
    ground = rule(LEFT, base, WIDTH - RIGHT, base, "grid")
    if not band.total:
        return ground
    path = " L".join(
        f"{frame.px(max(x, frame.x[0]))} {base - scale * count / band.total:.1f}"
        for x, count in outline(band)
    )
    area = (
        f'<path class="area {css_class}" d="M{path}Z">'
        f"<title>{band.total:,} pairs, mean {three_digits(band.mean)}</title></path>"
    )
    mean_x = frame.px(max(band.mean, frame.x[0]))
    x, anchor = (mean_x - 5, "end") if mean_x > WIDTH - RIGHT - 36 else (mean_x + 5, "start")
    mark = rule(mean_x, base, mean_x, round(base - 16, 1), f"centre {css_class}")
    label = text_at(x, base - 4, minus(f"{band.mean:.2f}"), f"{css_class} value {anchor}")
    return ground + area + mark + label


def _grouped_bar(frame: ChartFrame, index: int, number: int, count: int, proportion: float) -> str:
    """Draw the bar of series `number` of `count` in the group of bars at `index`."""
    width = 0.8 / count
    left, right = (frame.px(index + 0.1 + width * (number + edge)) for edge in (0, 1))
    y, name = frame.py(proportion), colour(number)
    shape = bar(name, left + 0.5, max(0.6, right - left - 1), (y, HEIGHT - BOTTOM), percent(proportion))
    if right - left <= 14:
        return shape
    return shape + text_at((left + right) / 2, y - 4, f"{100 * proportion:.0f}", f"{name} value middle")


def _padded_range(values: Sequence[float]) -> tuple[float, float]:
    """Return the range of the values, with room for the labels of the outermost points."""
    low, high = min(values), max(values)
    room = max(0.35 * (high - low), 0.08 * max(abs(low), abs(high)), 0.02)
    return low - room, high + room


def _point_label(frame: ChartFrame, point: tuple[float, float], css_class: str) -> _Label:
    """Return the label of a point, on the side with more room."""
    x, y = frame.px(point[0]), frame.py(point[1]) + 4
    to_left = x > (LEFT + WIDTH) / 2
    return _Label(
        x + (-11 if to_left else 11),
        y,
        f"{three_digits(point[0])}, {three_digits(point[1])}",
        f"{css_class} value {'end' if to_left else 'start'}",
    )


def _end_label(frame: ChartFrame, curve: Points, css_class: str) -> _Label:
    """Return the label of a curve's last point: its value."""
    x, y = curve[-1]
    return _Label(frame.px(x) + 7, frame.py(y) + 4, three_digits(y), f"{css_class} value start")
