"""Charts of the geometry of several spaces side by side: each has one colour everywhere (classes s0 to s5), and its figure stands beside its mark."""

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
    Frame,
    area,
    line,
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
from pipeline.stats.space import EditBin

COLOURS = 6
_DECADES = (
    3  # of singular values that are shown: below a thousandth of the largest a direction carries nothing
)
_APART = 12.5  # pixels between two lines of text

Points = Sequence[tuple[float, float]]


def colour(number: int) -> str:
    """The class of the series of that number."""
    return f"s{number % COLOURS}"


def layer_chart(curves: Sequence[Points], what: str) -> Markup:
    """A figure by layer, 0 the embedding layer's output: one line for each encoder, its value in the last layer written beside it."""
    values = [y for curve in curves for _, y in curve]
    low, high = min(0.0, *values), max(0.0, *values)
    room = 0.08 * ((high - low) or 1)
    layers = sorted({int(x) for curve in curves for x, _ in curve})
    frame = Frame((0, 1.13 * max(layers[-1], 1)), (low - room * (low < 0), high + room))
    marks = "".join(
        line(frame, curve, colour(number)) + _dots(frame, curve, colour(number))
        for number, curve in enumerate(curves)
    )
    labels = _labels([_last(frame, curve, colour(number)) for number, curve in enumerate(curves)])
    axes = x_axis(frame, spaced(frame, layers), "layer") + y_axis(frame, ticks(*frame.y, 5))
    return svg(axes + marks + labels, f"{what} by layer")


def spectra_chart(spectra: Sequence[Sequence[float]]) -> Markup:
    """Singular values as shares of the largest, by rank, on a logarithmic axis."""
    frame = Frame((1, max(2, *map(len, spectra))), (-_DECADES, 0))
    lines = "".join(line(frame, _shown(spectrum), colour(number)) for number, spectrum in enumerate(spectra))
    axes = x_axis(frame, [1, *ticks(1, frame.x[1], 4)], "component, by size") + y_axis(
        frame, range(-_DECADES, 1), lambda power: f"{10.0**power:g}"
    )
    return svg(axes + lines, "Singular values as shares of the largest, by rank, logarithmic")


def cosines_chart(histograms: Sequence[Histogram]) -> Markup:
    """Shares of random pairs by cosine: one stepped area for each space, a line at each mean."""
    ends = [edge for one in histograms for edge in occupied(one)]
    frame = Frame(
        (min(*ends, -0.1), max(*ends, 0.1)),
        (0, 1.12 * max(max(one.counts) / one.total for one in histograms)),
    )
    areas = "".join(area(frame, one, colour(number)) for number, one in enumerate(histograms))
    means = "".join(
        rule(frame.px(one.mean), TOP, frame.px(one.mean), HEIGHT - BOTTOM, f"mean {colour(number)}")
        for number, one in enumerate(histograms)
    )
    axes = x_axis(frame, ticks(*frame.x, 6), "cosine of two random sentences") + y_axis(
        frame, ticks(*frame.y, 4), percent
    )
    return svg(axes + areas + means, "Cosines of random pairs of sentences")


def bands_chart(bands: Sequence[Histogram], low: float, number: int) -> Markup:
    """Cosines of pairs by the score that people gave, a row for each whole score, the highest on top; each row's mean is marked. low: left end of the axis."""
    frame = Frame((low, 1), (0, 1))
    highest = max((count / band.total for band in bands if band.total for count in band.counts), default=1.0)
    step = (HEIGHT - TOP - BOTTOM) / len(bands)
    rows = [
        _row(frame, band, HEIGHT - BOTTOM - place * step, 0.94 * step / highest, colour(number))
        for place, band in enumerate(bands)
    ]
    names = (
        words_at(LEFT - 7, HEIGHT - BOTTOM - place * step - 4, f"{place} – {place + 1}", "end")
        for place in range(len(bands))
    )
    return svg(
        "".join([x_axis(frame, ticks(low, 1, 6), "cosine"), *rows, *names]),
        "Cosines of pairs by the score that people gave",
    )


def hubs_chart(found: Sequence[Sequence[int]], k: int) -> Markup:
    """Shares of sentences by how often they are a neighbour of others; the middle is where all would be in a space without hubs."""
    edges = [0, 1, max(2, k // 2), 2 * k, 5 * k]
    names = ["never", *(f"{left}–{right - 1}" for left, right in pairwise(edges[1:])), f"{edges[-1]}+"]
    shares = [
        [sum(one[left:right]) / sum(one) for left, right in zip(edges, [*edges[1:], None], strict=True)]
        for one in found
    ]
    frame = Frame((0, len(names)), (0, 1.1 * max(max(each) for each in shares)))
    bars = "".join(
        _bar(frame, place, number, len(shares), each[place])
        for number, each in enumerate(shares)
        for place in range(len(names))
    )
    axis = _named_axis(
        frame,
        [(place + 0.5, name) for place, name in enumerate(names)],
        f"times among the {k} nearest of others",
    )
    return svg(
        y_axis(frame, ticks(*frame.y, 5), percent) + bars + axis,
        "Sentences by how often they are a neighbour",
    )


def edits_chart(edits: Sequence[Sequence[EditBin]]) -> Markup:
    """How highly pairs rank by cosine, by their edit distance, in bins of equally many; dashed: how highly they rank by the score of people."""
    bins = edits[0]
    values = [share for each in edits for one in each for share in (one.similarity, one.gold)]
    frame = Frame((0.5, len(bins) + 0.5), (max(0.0, min(values) - 0.06), min(1.0, max(values) + 0.06)))
    lines = "".join(
        line(frame, [(place + 1, one.similarity) for place, one in enumerate(each)], colour(number))
        for number, each in enumerate(edits)
    )
    people = line(frame, [(place + 1, one.gold) for place, one in enumerate(bins)], "people")
    names = [(place + 1.0, f"{one.distance:.0f}") for place, one in enumerate(bins)]
    axes = y_axis(frame, ticks(*frame.y, 4), percent) + _named_axis(
        frame, names, "edit distance of the pair, in bins of equally many"
    )
    return svg(
        axes + lines + people, "Rank by cosine, by edit distance, beside the rank by the score of people"
    )


def plane_chart(points: Sequence[tuple[float, float]]) -> Markup:
    """(uniformity, alignment) of each space, as a point: low is good on both axes, so the lower left corner is."""
    frame = Frame(_padded([x for x, _ in points]), _padded([y for _, y in points]))
    dots = "".join(
        _dot(frame.px(x), frame.py(y), colour(number), 6, f"uniformity {figure(x)}, alignment {figure(y)}")
        for number, (x, y) in enumerate(points)
    )
    texts = _labels([_beside(frame, point, colour(number)) for number, point in enumerate(points)])
    corner = words_at(LEFT + 6, HEIGHT - BOTTOM - 7, "↙ better", "start soft")
    axes = x_axis(frame, ticks(*frame.x, 5), "uniformity: spread of all sentences") + y_axis(
        frame, ticks(*frame.y, 5)
    )
    return svg(axes + corner + dots + texts, "Alignment against uniformity")


def figure(value: float) -> str:
    """Three digits with a true minus sign: 0.065, −3.62, 216."""
    size = abs(value)
    text = (
        f"{value:.0f}"
        if size >= 100
        else f"{value:.1f}"
        if size >= 10
        else f"{value:.2f}"
        if size >= 1
        else f"{value:.3f}"
    )
    return text.replace("-", "\u2212") if float(text) else text.removeprefix("-")


def _shown(spectrum: Sequence[float]) -> Points:
    """Ranks and powers of ten, down to the bottom of the chart."""
    floor = 10.0**-_DECADES
    return [(rank, math.log10(max(value, floor))) for rank, value in thinned(spectrum)]


def _dots(frame: Frame, points: Points, name: str) -> str:
    return "".join(_dot(frame.px(x), frame.py(y), name, 2.8, f"layer {x:g}: {figure(y)}") for x, y in points)


def _dot(x: float, y: float, name: str, radius: float, words: str) -> str:
    return f'<circle class="point {name}" cx="{x}" cy="{y}" r="{radius}"><title>{words}</title></circle>'


def _labels(wanted: Sequence[tuple[float, float, str, str]]) -> str:
    """(x, y, words, class) each; those that would run into each other are moved apart, downwards, and back up from the bottom of the chart."""
    order = sorted(range(len(wanted)), key=lambda number: wanted[number][1])
    places = [wanted[number][1] for number in order]
    for at in range(1, len(places)):
        places[at] = max(places[at], places[at - 1] + _APART)
    bottom = HEIGHT - BOTTOM - 3.0
    for at in reversed(range(len(places))):
        places[at] = min(places[at], bottom)
        bottom = places[at] - _APART
    return "".join(
        words_at(wanted[number][0], y, *wanted[number][2:]) for number, y in zip(order, places, strict=True)
    )


def _row(frame: Frame, band: Histogram, base: float, scale: float, name: str) -> str:
    """One stepped area that stands on `base`, and its mean."""
    ground = rule(LEFT, base, WIDTH - RIGHT, base, "grid")
    if not band.total:
        return ground
    low, high = occupied(band)
    inside = [
        part
        for part in zip(band.edges, band.edges[1:], band.counts, strict=False)
        if part[0] >= low and part[1] <= high
    ]
    corners = [(low, 0.0), *((x, count) for left, right, count in inside for x in (left, right)), (high, 0.0)]
    path = " L".join(
        f"{frame.px(max(x, frame.x[0]))} {base - scale * count / band.total:.1f}" for x, count in corners
    )
    area_title = f"{band.total:,} pairs, mean {figure(band.mean)}"
    at = frame.px(max(band.mean, frame.x[0]))
    words, side = (
        f"{band.mean:.2f}".replace("-", "\u2212"),
        (at - 5, "end") if at > WIDTH - RIGHT - 36 else (at + 5, "start"),
    )
    mark = rule(at, base, at, round(base - 16, 1), f"centre {name}") + words_at(
        side[0], base - 4, words, f"{name} value {side[1]}"
    )
    return f'{ground}<path class="area {name}" d="M{path}Z"><title>{area_title}</title></path>{mark}'


def _bar(frame: Frame, place: int, number: int, count: int, share: float) -> str:
    width = 0.8 / count
    left, right = (frame.px(place + 0.1 + width * (number + side)) for side in (0, 1))
    y, name = frame.py(share), colour(number)
    label = (
        words_at((left + right) / 2, y - 4, f"{100 * share:.0f}", f"{name} value middle")
        if right - left > 14
        else ""
    )
    size = f'x="{left + 0.5:.1f}" y="{y}" width="{max(0.6, right - left - 1):.1f}" height="{HEIGHT - BOTTOM - y:.1f}"'
    return f'<rect class="{name}" {size}><title>{percent(share)}</title></rect>{label}'


def _named_axis(frame: Frame, names: Sequence[tuple[float, str]], title: str) -> str:
    """An axis whose places have names."""
    base = HEIGHT - BOTTOM
    marks = "".join(words_at(frame.px(place), base + 17, name, "middle") for place, name in names)
    return (
        rule(LEFT, base, WIDTH - RIGHT, base, "axis")
        + marks
        + words_at((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 5, title, "middle title")
    )


def _padded(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    room = max(0.35 * (high - low), 0.08 * max(abs(low), abs(high)), 0.02)
    return low - room, high + room


def _beside(frame: Frame, point: tuple[float, float], name: str) -> tuple[float, float, str, str]:
    """The label of a point, on the side that has room for it."""
    x, y = frame.px(point[0]), frame.py(point[1]) + 4
    right = x > (LEFT + WIDTH) / 2
    return (
        x + (-11 if right else 11),
        y,
        f"{figure(point[0])}, {figure(point[1])}",
        f"{name} value {'end' if right else 'start'}",
    )


def _last(frame: Frame, curve: Points, name: str) -> tuple[float, float, str, str]:
    """The label of a curve's end."""
    x, y = curve[-1]
    return frame.px(x) + 7, frame.py(y) + 4, figure(y), f"{name} value start"
