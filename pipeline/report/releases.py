"""Page over all releases of a root."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from pipeline.charts.frame import compact, percent
from pipeline.charts.releases import history_chart
from pipeline.report.page import fill


@dataclass(frozen=True)
class ReleaseRow:
    """Existing release; metrics that were not measured or recorded are None."""

    number: int
    published: str
    """date and time, formatted"""
    rows: int
    new: int = 0
    changed: int = 0
    deleted: int = 0
    recall_at_10: float | None = None
    p99_ms: float | None = None
    index_kind: str = ""
    index_bytes: int = 0
    seconds: float | None = None
    """duration of the night"""


@dataclass(frozen=True)
class Event:
    """A commit that does not publish a release."""

    kind: str
    release: int
    at: str
    reason: str = ""


@dataclass(frozen=True)
class Overview:
    """Values of the page.

    Attributes:
        root: address of the root.
        current: number of the current release, or None.
        held: hold of the root, or None.
        rows: releases, newest first.
        events: rollbacks, holds and their ends.
        pruned: number of deleted releases.
        damage: description of damage to the store.
        state: digest of the store's state.
    """

    root: str
    current: int | None
    held: Event | None
    rows: tuple[ReleaseRow, ...]
    events: tuple[Event, ...]
    pruned: int
    damage: str
    state: str


def render(overview: Overview) -> str:
    """Render the page."""
    live = next((row for row in overview.rows if row.number == overview.current), None)
    return fill("releases.html.j2", {}, overview=overview, live=live, charts=list(_charts(overview.rows)))


def _charts(rows: Sequence[ReleaseRow]) -> Iterator[tuple[str, Markup]]:
    """Draw charts of metrics that at least two releases have, with their headings."""
    for name, heading, label, from_zero in (
        ("rows", "Live rows", compact, True),
        ("recall_at_10", "Recall@10", percent, False),
        ("seconds", "Duration of the night, s", compact, True),
        ("p99_ms", "p99 query time, ms", compact, True),
    ):
        points = [(row.number, value) for row in rows[::-1] if (value := getattr(row, name)) is not None]
        if len(points) > 1:
            yield heading, history_chart(points, heading, label, from_zero=from_zero)
