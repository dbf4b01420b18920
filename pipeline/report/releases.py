"""The page over all releases of a root: one HTML file with everything inside; no network, no script."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from pipeline.charts.frame import compact, percent
from pipeline.charts.releases import history_chart
from pipeline.report.page import fill


@dataclass(frozen=True)
class Row:
    """One release that is there. Figures that were not measured, or not kept by an older version, are None."""

    number: int
    published: str
    """when, as it is to be read"""
    rows: int
    new: int = 0
    changed: int = 0
    deleted: int = 0
    recall_at_10: float | None = None
    p99_ms: float | None = None
    index_kind: str = ""
    index_bytes: int = 0
    seconds: float | None = None
    """of the night that made it"""


@dataclass(frozen=True)
class Event:
    """A commit that is not a night's."""

    kind: str
    release: int
    at: str
    reason: str = ""


@dataclass(frozen=True)
class Overview:
    """rows: newest first; pruned: how many releases are not there any more; state: of the store, as a digest."""

    root: str
    current: int | None
    held: Event | None
    rows: tuple[Row, ...]
    events: tuple[Event, ...]
    pruned: int
    damage: str
    state: str


def render(overview: Overview) -> str:
    """The page, complete in itself (UTF-8)."""
    live = next((row for row in overview.rows if row.number == overview.current), None)
    return fill("releases.html.j2", {}, overview=overview, live=live, charts=_charts(overview.rows))


def _charts(rows: Sequence[Row]) -> list[tuple[str, Markup]]:
    """The charts for which there are at least two releases, with their headings."""
    ascending = rows[::-1]
    figures: list[tuple[str, list[tuple[int, float | None]], Callable[[float], str], bool]] = [
        ("Rows live", [(row.number, row.rows) for row in ascending], compact, True),
        ("Recall@10", [(row.number, row.recall_at_10) for row in ascending], percent, False),
        ("Seconds of the night", [(row.number, row.seconds) for row in ascending], compact, True),
        ("p99 of a query, ms", [(row.number, row.p99_ms) for row in ascending], compact, True),
    ]
    drawn = []
    for heading, points, label, from_zero in figures:
        measured = [(number, value) for number, value in points if value is not None]
        if len(measured) > 1:
            drawn.append((heading, history_chart(measured, heading, label, from_zero=from_zero)))
    return drawn
