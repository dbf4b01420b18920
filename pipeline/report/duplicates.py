"""Render the page of near-duplicates of a release. Each page has a module that knows only its values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pipeline.charts.frame import shorten
from pipeline.report.evaluation_report import Section
from pipeline.report.formats import MAX_EXCERPT, cosine
from pipeline.report.page import render_template

_GROUPS_NOTE = (
    "The first rows of each group. The cosine is that with the first row, and may be below the threshold, "
    "because rows of a group are connected by pairs."
)
_PAIRS_NOTE = "The pairs with the lowest cosines: if they differ in meaning, raise the threshold."


class DuplicateRow(NamedTuple):
    """A row as the page shows it."""

    id: str
    text: str
    """"" if texts cannot be read"""
    cosine: float
    """cosine with the first row of its group, or with the other row of its pair"""


@dataclass(frozen=True, kw_only=True)
class DuplicatesReport:
    """Values of the page."""

    created: str
    """date and time, as shown on the page"""
    facts: Mapping[str, float]
    """release, threshold, rows, pairs, groups, grouped and largest"""
    cosines: tuple[tuple[float, float, int], ...]
    """(low, high, number of pairs) of each range of cosines"""
    groups: tuple[tuple[int, tuple[DuplicateRow, ...]], ...]
    """(number of rows, first rows) of each of the largest groups"""
    borderline: tuple[tuple[DuplicateRow, DuplicateRow], ...]
    """pairs with the lowest cosines"""
    packages: Mapping[str, str] = field(default_factory=dict)
    """versions of packages"""


def render(report: DuplicatesReport) -> str:
    """Render the page; all texts are escaped."""
    return render_template("duplicates.html.j2", {}, report=report, sections=list(_sections(report)))


def _sections(report: DuplicatesReport) -> tuple[Section, ...]:
    if not report.groups:
        return ()
    bands = [(f"{cosine(low)} to {cosine(high)}", f"{count:,}") for low, high, count in report.cosines]
    members = [
        (f"{size:,}" if number == 0 else "", row.id, cosine(row.cosine), shorten(row.text, MAX_EXCERPT))
        for size, rows in report.groups
        for number, row in enumerate(rows)
    ]
    pairs = [
        (cosine(left.cosine), *(f"{row.id}: {shorten(row.text, MAX_EXCERPT)}" for row in (left, right)))
        for left, right in report.borderline
    ]
    return (
        Section("Pairs by cosine", table=(("cosine", "pairs"), *bands)),
        Section(
            "Largest groups",
            table=(("rows", "id", "cosine", "text"), *members),
            notes=(_GROUPS_NOTE,),
            has_texts=True,
        ),
        Section(
            "Pairs at the threshold",
            table=(("cosine", "first", "second"), *pairs),
            notes=(_PAIRS_NOTE,),
            has_texts=True,
        ),
    )
