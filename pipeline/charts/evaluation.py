"""Charts of an evaluation."""

from collections.abc import Sequence

from markupsafe import Markup, escape

from pipeline.charts.frame import Frame, rule, ticks, words_at

WIDTH = 600  # wider than other charts: task names stand in it
_LEFT, _RIGHT, _TOP, _BOTTOM, _ROW, _APART = 140, 12, 8, 40, 24, 7
_MOST_LETTERS = 24  # of a task's name beside its row
COLOURS = 5  # kinds of dots; then they repeat

Dot = tuple[float, float | None, float | None]
"""(value, low, high); None where there is no interval"""


def difference_chart(rows: Sequence[tuple[str, Sequence[Dot | None]]], unit: str) -> Markup:
    """Differences with the first candidate, a row each, a dot for every other candidate and a line over its interval; to the right of the middle line is better."""
    most = (
        max(
            (abs(end) for _, dots in rows for dot in dots if dot for end in dot if end is not None),
            default=0.0,
        )
        * 1.08
        or 1.0
    )
    frame, height = _Scale((-most, most), (0, 1)), _TOP + _ROW * len(rows) + _BOTTOM
    base = height - _BOTTOM
    grid = "".join(_upright(frame, x, base) for x in ticks(-most, most, 8))
    drawn = "".join(
        _row(frame, name, dots, _TOP + _ROW * (place + 0.5)) for place, (name, dots) in enumerate(rows)
    )
    title = words_at((_LEFT + WIDTH - _RIGHT) / 2, height - 5, f"difference in {unit}", "middle title")
    label = f"Differences in {unit} with their intervals"
    return Markup(
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label)}">{grid}{drawn}{title}</svg>'
    )


class _Scale(Frame):
    """x over the part right of the names."""

    def px(self, value: float) -> float:
        low, high = self.x
        return round(_LEFT + (WIDTH - _LEFT - _RIGHT) * (value - low) / ((high - low) or 1), 1)


def _upright(frame: Frame, x: float, base: float) -> str:
    return rule(frame.px(x), _TOP, frame.px(x), base, "zero" if x == 0 else "grid") + words_at(
        frame.px(x), base + 17, _signed(x), "middle"
    )


def _row(frame: Frame, name: str, dots: Sequence[Dot | None], y: float) -> str:
    short = name if len(name) <= _MOST_LETTERS else name[: _MOST_LETTERS - 1] + "…"
    shown = [(place, dot) for place, dot in enumerate(dots) if dot is not None]
    first = y - _APART * (len(shown) - 1) / 2
    return words_at(_LEFT - 12, y + 4, short, "end") + "".join(
        _dot(frame, dot, place % COLOURS, first + _APART * at) for at, (place, dot) in enumerate(shown)
    )


def _dot(frame: Frame, dot: Dot, colour: int, y: float) -> str:
    value, low, high = dot
    spread = "" if low is None or high is None else f", {_signed(low)} to {_signed(high)}"
    across = (
        ""
        if low is None or high is None
        else rule(frame.px(low), y, frame.px(high), y, f"interval c{colour}")
    )
    return f'{across}<circle class="c{colour}" cx="{frame.px(value)}" cy="{y:.1f}" r="4"><title>{_signed(value)}{spread}</title></circle>'


def _signed(value: float) -> str:
    """+1.2, −0.35, 0; a true minus sign."""
    return f"{value:+.3g}".replace("-", "\u2212") if value else "0"
