"""Charts for the report of an augmentation: kept and rejected variants, and their distance from the texts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup, escape

from pipeline.charts.frame import (
    BOTTOM,
    HEIGHT,
    RIGHT,
    TOP,
    WIDTH,
    ChartFrame,
    bar,
    compact,
    percent,
    rule,
    shorten,
    svg,
    text_at,
    ticks,
    x_axis,
    y_axis,
)

OTHER = "other"  # CSS class of reasons without a colour of their own
_COLOURS = ("s1", "s3", "s4", "s2", "s5")  # CSS classes of reasons; s0 is for kept variants
_ROW_HEIGHT, _BAR_HEIGHT = 40, 16  # pixels
_LABEL_Y, _BAR_Y = 11, 17  # pixels from the top of a row to the baseline of its label, and to its bar
_MIN_WIDTH, _GAP = 0.6, 0.8  # pixels: narrowest bar, so that one variant is visible, and gap between bars
_MIN_REJECTED = 1.5  # pixels: lowest bar of rejected variants
_HEADROOM = 1.06  # height of the y axis as a multiple of the highest bar
_MAX_LABEL = 40  # characters
_MIN_LABEL_GAP = 40  # pixels between the centred labels of two bounds

Bounds = tuple[float, float]


@dataclass(frozen=True)
class VariantHistogram:
    """Histogram of kept and rejected variants by a measure."""

    edges: tuple[float, ...]
    """edges of the bins"""
    kept: tuple[int, ...]
    """number of kept variants per bin; the outer bins include all values beyond"""
    rejected: tuple[int, ...]
    """number of rejected variants per bin"""
    bounds: Bounds | None = None
    """smallest and largest value of the measure that the settings allow; None without limits"""

    @classmethod
    def of(
        cls, values: np.ndarray, is_kept: np.ndarray, edges: np.ndarray, bounds: Bounds | None = None
    ) -> "VariantHistogram":
        """Count variants by bin.

        Args:
            values: (n,) the measure of each variant.
            is_kept: (n,) bool, False for rejected variants.
            edges: ascending edges of the bins.
            bounds: smallest and largest value that the settings allow; None without limits.
        """
        values = np.clip(values, edges[0], edges[-1])
        kept, rejected = np.histogram(values[is_kept], edges)[0], np.histogram(values[~is_kept], edges)[0]
        return cls(tuple(edges.tolist()), tuple(kept.tolist()), tuple(rejected.tolist()), bounds)

    def __add__(self, other: "VariantHistogram") -> "VariantHistogram":
        """Add the counts of two histograms with the same edges and bounds."""
        return VariantHistogram(
            self.edges,
            tuple(map(sum, zip(self.kept, other.kept, strict=True))),
            tuple(map(sum, zip(self.rejected, other.rejected, strict=True))),
            self.bounds,
        )

    @property
    def total(self) -> int:
        """Number of all variants."""
        return sum(self.kept) + sum(self.rejected)

    @property
    def range(self) -> tuple[float, float]:
        """Smallest interval that contains all occupied bins, and the bounds if these are within the edges."""
        occupied = np.flatnonzero(np.add(self.kept, self.rejected)).tolist() or [0]
        ends = [self.edges[occupied[0]], self.edges[occupied[-1] + 1]]
        within = [bound for bound in self.bounds or () if self.edges[0] <= bound <= self.edges[-1]]
        return min(ends + within), max(ends + within)


def css_classes(reasons: Sequence[str]) -> dict[str, str]:
    """Return the CSS class of each reason, which sets its colour in all charts of a page.

    The first five reasons have a colour each, the others share one.
    """
    return {
        reason: _COLOURS[number] if number < len(_COLOURS) else OTHER for number, reason in enumerate(reasons)
    }


def proportions_chart(counts: Mapping[str, Mapping[str, int]], colour: Mapping[str, str]) -> Markup:
    """Draw a bar per label, divided into kept variants and rejected ones by reason.

    Args:
        counts: for each label, the number of variants by reason of rejection; "kept" for kept variants.
        colour: CSS class of each reason.
    """
    return svg(
        "Proportions of kept variants, and of rejected variants by reason",
        *(
            _label_bar(label, by_reason, colour, _ROW_HEIGHT * number)
            for number, (label, by_reason) in enumerate(counts.items())
        ),
        height=_ROW_HEIGHT * len(counts),
    )


def histogram_chart(histogram: VariantHistogram, measure: str) -> Markup:
    """Draw the proportions of kept and rejected variants by a measure, stacked; bounds are dashed lines."""
    low, high = histogram.range
    largest = max(np.add(histogram.kept, histogram.rejected).tolist(), default=0)
    frame = ChartFrame((low, high), (0, _HEADROOM * (largest / max(histogram.total, 1) or 1)))
    return svg(
        f"Variants by {measure}",
        y_axis(frame, ticks(*frame.y, 4), percent),
        x_axis(frame, ticks(low, high, 6), measure),
        *(
            _bars(frame, histogram, number)
            for number in range(len(histogram.kept))
            if histogram.kept[number] or histogram.rejected[number]
        ),
        _bounds(frame, histogram),
    )


def _label_bar(label: str, counts: Mapping[str, int], colour: Mapping[str, str], top: float) -> str:
    """Draw the label and the divided bar of one row, which begins at pixel `top`."""
    total, left = max(sum(counts.values()), 1), 0.0
    marks = text_at(0, top + _LABEL_Y, shorten(label, _MAX_LABEL), "label")
    marks += text_at(WIDTH, top + _LABEL_Y, f"{percent(counts.get('kept', 0) / total)} kept", "end")
    for name, css in {"kept": "kept", **colour}.items():
        if count := counts.get(name, 0):
            title = escape(f"{name.replace('_', ' ')}: {count:,}, {percent(count / total)}")
            width = WIDTH * count / total
            y = (top + _BAR_Y, top + _BAR_Y + _BAR_HEIGHT)
            marks += bar(css, min(left, WIDTH - _MIN_WIDTH), max(width - _GAP, _MIN_WIDTH), y, title)
            left += width
    return marks


def _bars(frame: ChartFrame, histogram: VariantHistogram, number: int) -> str:
    """Draw one bin: rejected variants on top of kept ones."""
    left, right, total = histogram.edges[number], histogram.edges[number + 1], histogram.total
    kept, rejected = histogram.kept[number], histogram.rejected[number]
    x, width = frame.px(left) + _GAP / 2, max(frame.px(right) - frame.px(left) - _GAP, _MIN_WIDTH)
    middle = frame.py(kept / total)
    top = max(min(frame.py((kept + rejected) / total), middle - _MIN_REJECTED * (rejected > 0)), TOP)
    title = f"{compact(round(left, 6))} to {compact(round(right, 6))}: {kept:,} kept, {rejected:,} rejected"
    lower = bar("kept", x, width, (middle, HEIGHT - BOTTOM), title) if kept else ""
    return lower + (bar("rejected", x, width, (round(top, 1), middle), title) if rejected else "")


def _bounds(frame: ChartFrame, histogram: VariantHistogram) -> str:
    """Draw the bounds as labelled vertical lines; labels of close bounds are on their outer sides."""
    if histogram.bounds is None:
        return ""
    shown = [
        (frame.px(bound), f"{sign} {bound:g}")
        for sign, bound in zip("≥≤", histogram.bounds, strict=True)
        if frame.x[0] <= bound <= frame.x[1]
    ]
    are_close = len(shown) == 2 and shown[1][0] - shown[0][0] < _MIN_LABEL_GAP
    marks = ""
    for number, (x, label) in enumerate(shown):
        if are_close:
            anchor = ("end", "start")[number]
        else:
            anchor = "end" if x > WIDTH - RIGHT - _MIN_LABEL_GAP / 2 else "middle"
        marks += rule(x, TOP, x, HEIGHT - BOTTOM, "target") + text_at(x, TOP - 3, label, f"{anchor} note")
    return marks
