"""Charts of an augmentation: what was kept and what was not, variant by variant, and how far variants are from their texts."""

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
    Frame,
    compact,
    percent,
    rule,
    svg,
    ticks,
    words_at,
    x_axis,
    y_axis,
)

OTHER = "other"  # the class of all reasons without a colour of their own
_COLOURS = ("s1", "s3", "s4", "s2", "s5")  # s0 is for what is kept
_ROW, _BAR = 40, 16
_LETTERS = 40  # of a label above its bar
_APART = 40  # pixels that two bounds' labels take

Bounds = tuple[float, float]


@dataclass(frozen=True)
class Spread:
    """Variants by a figure of theirs: kept[i] and rejected[i] of them lie in [edges[i], edges[i + 1]), in the outer bins also those beyond. bounds: of what is kept."""

    edges: tuple[float, ...]
    kept: tuple[int, ...]
    rejected: tuple[int, ...]
    bounds: Bounds | None = None

    @classmethod
    def of(
        cls, values: np.ndarray, is_kept: np.ndarray, edges: np.ndarray, bounds: Bounds | None = None
    ) -> "Spread":
        """values (n,), is_kept (n,) bool, edges rising."""
        inside = np.clip(values, edges[0], edges[-1])
        kept, rejected = (
            tuple(np.histogram(inside[chosen], edges)[0].tolist()) for chosen in (is_kept, ~is_kept)
        )
        return cls(tuple(edges.tolist()), kept, rejected, bounds)

    def __add__(self, other: "Spread") -> "Spread":
        kept, rejected = (
            tuple(map(sum, zip(*pair, strict=True)))
            for pair in ((self.kept, other.kept), (self.rejected, other.rejected))
        )
        return Spread(self.edges, kept, rejected, self.bounds)

    @property
    def total(self) -> int:
        return sum(self.kept) + sum(self.rejected)

    @property
    def range(self) -> tuple[float, float]:
        """The ends of the bins that are not empty, and of the bounds."""
        places = [
            place for place, both in enumerate(zip(self.kept, self.rejected, strict=True)) if any(both)
        ] or [0]
        ends = [self.edges[places[0]], self.edges[places[-1] + 1]]
        within = [bound for bound in self.bounds or () if self.edges[0] <= bound <= self.edges[-1]]
        return min(ends + within), max(ends + within)


def colours(reasons: Sequence[str]) -> dict[str, str]:
    """Reason -> class, the same in every chart of a page; the first reasons have colours of their own."""
    return {
        reason: _COLOURS[number] if number < len(_COLOURS) else OTHER for number, reason in enumerate(reasons)
    }


def shares_chart(counts: Mapping[str, Mapping[str, int]], colour: Mapping[str, str]) -> Markup:
    """A bar for each label: the share that is kept, and the others by reason. counts: label -> kept or reason -> variants."""
    drawn = "".join(
        _shares(label, each, colour, _ROW * number) for number, (label, each) in enumerate(counts.items())
    )
    label = "Shares of variants that are kept, and of those that are not by reason"
    return Markup(
        f'<svg viewBox="0 0 {WIDTH} {_ROW * len(counts)}" role="img" aria-label="{label}">{drawn}</svg>'
    )


def spread_chart(spread: Spread, what: str) -> Markup:
    """Shares of all variants by their figure, those that are not kept standing on those that are; the bounds as dashed lines."""
    low, high = spread.range
    most = max((sum(both) for both in zip(spread.kept, spread.rejected, strict=True)), default=0)
    frame = Frame((low, high), (0, 1.06 * (most / max(spread.total, 1) or 1)))
    bars = "".join(
        _bars(frame, spread, place)
        for place in range(len(spread.kept))
        if spread.kept[place] or spread.rejected[place]
    )
    axes = y_axis(frame, ticks(*frame.y, 4), percent) + x_axis(frame, ticks(low, high, 6), what)
    return svg(axes + bars + _bounds(frame, spread), f"Variants by {what}")


def _shares(label: str, counts: Mapping[str, int], colour: Mapping[str, str], top: float) -> str:
    total, at, drawn = max(sum(counts.values()), 1), 0.0, ""
    for name in sorted(
        counts, key=lambda name: (name != "kept", list(colour).index(name) if name in colour else len(colour))
    ):
        width = WIDTH * counts[name] / total
        title = f"{name.replace('_', ' ')}: {counts[name]:,}, {percent(counts[name] / total)}"
        shape = f'x="{min(at, WIDTH - 0.6):.1f}" y="{top + 17}" width="{max(width - 0.8, 0.6):.1f}" height="{_BAR}"'
        drawn += (
            f'<rect class="{"kept" if name == "kept" else colour[name]}" {shape}><title>{escape(title)}</title></rect>'
            if counts[name]
            else ""
        )
        at += width
    short = label if len(label) <= _LETTERS else label[: _LETTERS - 1] + "…"
    return (
        words_at(0, top + 11, short, "label")
        + words_at(WIDTH, top + 11, f"{percent(counts.get('kept', 0) / total)} kept", "end")
        + drawn
    )


def _bars(frame: Frame, spread: Spread, place: int) -> str:
    left, right, total = spread.edges[place], spread.edges[place + 1], spread.total
    kept, rejected = spread.kept[place], spread.rejected[place]
    x, width = frame.px(left) + 0.4, max(frame.px(right) - frame.px(left) - 0.8, 0.6)
    middle = frame.py(kept / total)
    top = max(min(frame.py((kept + rejected) / total), middle - 1.5 * (rejected > 0)), TOP)
    title = f"<title>{compact(round(left, 6))} to {compact(round(right, 6))}: {kept:,} kept, {rejected:,} rejected</title>"
    parts = [("kept", middle, HEIGHT - BOTTOM)] * (kept > 0) + [("rejected", top, middle)] * (rejected > 0)
    return "".join(
        f'<rect class="{name}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{base - y:.1f}">{title}</rect>'
        for name, y, base in parts
    )


def _bounds(frame: Frame, spread: Spread) -> str:
    if spread.bounds is None:
        return ""
    shown = [
        (frame.px(bound), f"{sign} {bound:g}")
        for sign, bound in zip("≥≤", spread.bounds, strict=True)
        if frame.x[0] <= bound <= frame.x[1]
    ]
    close = len(shown) == 2 and shown[1][0] - shown[0][0] < _APART
    drawn = ""
    for number, (x, words) in enumerate(shown):
        side = ("end", "start")[number] if close else "end" if x > WIDTH - RIGHT - _APART / 2 else "middle"
        drawn += rule(x, TOP, x, HEIGHT - BOTTOM, "target") + words_at(x, TOP - 3, words, f"{side} note")
    return drawn
