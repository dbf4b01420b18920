"""Render index.html of a root: the page that lists all its releases."""

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from pipeline.charts.frame import (
    ChartFrame,
    compact,
    line,
    percent,
    svg,
    ticks,
    without_overlap,
    x_axis,
    y_axis,
)
from pipeline.report.page import render_template
from pipeline.store.releases.commits import Commit
from pipeline.store.releases.summary import Summary
from pipeline.store.releases.unpublished import UnpublishedNight
from pipeline.store.releases.waiting import Waiting

_MARGIN = 0.12  # room above the highest and below the lowest point, as a proportion of the range
# Smallest range of an axis that does not start at 0, as a proportion of the highest value: otherwise noise
# fills the chart and looks like a change.
_MIN_RANGE = 0.05


def history_chart(
    points: Sequence[tuple[int, float]],
    name: str,
    label: Callable[[float], str] = compact,
    *,
    from_zero: bool = True,
) -> Markup:
    """Draw a metric as a line with a dot per release.

    Args:
        points: pairs of a release's number and its value.
        name: name of the metric.
        label: format of the values on the axis.
        from_zero: True starts the axis of the values at 0.
    """
    numbers, values = [number for number, _ in points], [value for _, value in points]
    low, high = (0.0 if from_zero else min(values)), max(values)
    if not from_zero:
        low = min(low, high - _MIN_RANGE * abs(high))
    room = _MARGIN * ((high - low) or abs(high) or 1.0)
    frame = ChartFrame((numbers[0], numbers[-1]), (low if from_zero else low - room, high + room))
    return svg(
        f"{name} by release",
        x_axis(frame, without_overlap(frame, numbers), "release"),
        y_axis(frame, ticks(*frame.y, 4), label),
        line(frame, points, "accent"),
        *(f'<circle class="dot" cx="{frame.px(x)}" cy="{frame.py(y)}" r="2.6"/>' for x, y in points),
    )


@dataclass(frozen=True)
class ReleaseRow:
    """A release that was not deleted."""

    summary: Summary
    """its metrics"""
    commit: Commit | None
    """the commit that published it; None if it is missing"""
    has_report: bool
    """False if its report.html was deleted"""


@dataclass(frozen=True)
class UnpublishedRow:
    """A night that published nothing."""

    night: UnpublishedNight
    ending: str
    """what became of it; for a candidate that waited, its present state"""


@dataclass(frozen=True)
class Overview:
    """Values of the page."""

    root: str
    """URI of the root"""
    current: int | None
    """number of the current release; None if there is none"""
    held: Commit | None
    """commit that holds the root at a release; None if it is not held"""
    rows: tuple[ReleaseRow, ...]
    """releases, newest first"""
    events: tuple[Commit, ...]
    """commits of rollbacks, holds and their ends, newest first"""
    pruned: int
    """number of deleted releases"""
    damage: str
    """description of damage to the store; empty without any"""
    state: str
    """digest of the store's state, from which a later run sees that the page is up to date"""
    commits_root: str | None = None
    """URI of the store of the commits; None if they are below the root"""
    waiting: Waiting | None = None
    """the candidate that waits for its approval"""
    unpublished: tuple[UnpublishedRow, ...] = ()
    """nights that published nothing, newest first"""
    more_unpublished: int = 0
    """number of such nights that the page leaves out"""


def render(overview: Overview) -> str:
    """Render the page."""
    current = next((row for row in overview.rows if row.summary.release == overview.current), None)
    return render_template(
        "releases.html.j2",
        {"minute": _minute, "shell": shlex.quote},
        overview=overview,
        current=current,
        charts=list(_charts(overview.rows)),
    )


def _minute(time: str) -> str:
    """Format a time in ISO 8601 to the minute: 2026-11-22 11:24."""
    return time[:16].replace("T", " ")


def _charts(rows: Sequence[ReleaseRow]) -> Iterator[tuple[str, Markup]]:
    """Yield (heading, chart) of each metric that at least two releases have."""
    for name, heading, label, from_zero in (
        ("rows", "Live rows", compact, True),
        ("recall_at_10", "Recall@10", percent, False),
        ("seconds", "Duration of the night, s", compact, True),
        ("p99_ms", "p99 query time, ms", compact, True),
    ):
        points = [
            (row.summary.release, value)
            for row in rows[::-1]
            if (value := getattr(row.summary, name)) is not None
        ]
        if len(points) > 1:
            yield heading, history_chart(points, heading, label, from_zero=from_zero)
