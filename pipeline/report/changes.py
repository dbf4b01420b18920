"""Values of the release report that describe how a release differs from the previous one."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pipeline.charts.frame import minus
from pipeline.stats.drift import Drift
from pipeline.store.releases.fixed_query_results import Hit


@dataclass(frozen=True)
class RowChange:
    """A new, changed or deleted row, with its texts."""

    id: str
    before: str | None
    """the text in the previous release; None for a new row, "" if it is not shown"""
    now: str | None
    """the text in this release; None for a deleted row"""


@dataclass(frozen=True)
class ReleaseChange:
    """Differences of a release from the previous one, except differences of rows and answers."""

    number: int
    """number of the previous release"""
    link: str
    """path of the previous release's report, relative to the folder of this report"""
    drift: Drift | None = None
    """how far the vectors have drifted since the previous release; None if that is not known"""
    settings: Mapping[str, tuple[object, object]] = field(default_factory=dict)
    """(before, now) of the settings that differ, by their full names"""


@dataclass(frozen=True)
class QuarantinedRow:
    """A quarantined row."""

    reason: str
    """why it was quarantined"""
    file: str
    """file of the row"""
    row: int
    """row number in the file, -1 for the whole file"""
    id: str | None = None
    """id of the row, if known"""
    detail: str | None = None
    """details of the reason"""
    excerpt: str | None = None
    """beginning of the row's text"""


@dataclass(frozen=True)
class ChangedAnswers:
    """A fixed query with its results in the previous release (before) and in this one (now), best first."""

    query: str
    before: tuple[Hit, ...]
    now: tuple[Hit, ...]

    @property
    def differ(self) -> bool:
        """True if the results or their order differ."""
        return [hit.id for hit in self.before] != [hit.id for hit in self.now]

    @property
    def only_before(self) -> tuple[Hit, ...]:
        """Results of the previous release only."""
        return _without(self.before, self.now)

    @property
    def only_now(self) -> tuple[Hit, ...]:
        """Results of this release only."""
        return _without(self.now, self.before)


def _without(hits: tuple[Hit, ...], others: tuple[Hit, ...]) -> tuple[Hit, ...]:
    other_ids = {hit.id for hit in others}
    return tuple(hit for hit in hits if hit.id not in other_ids)


def format_difference(now: float, before: float | None, number: int, step: float, unit: str = "") -> str:
    """Format the difference of a metric from the previous release, whose number is `number`.

    Args:
        before: the metric in the previous release; None if it is not known.
        step: resolution to which the difference is rounded, such as 0.01.
    """
    if before is None:
        return f"not known of release {number}"
    steps = round((now - before) / step)
    if not steps:
        return f"as in release {number}"
    digits = max(0, len(f"{step:.6f}".rstrip("0").partition(".")[2]))
    return minus(f"{steps * step:+,.{digits}f}{unit} since release {number}")


def group_by_kind(rows: tuple[RowChange, ...]) -> Iterator[tuple[str, list[RowChange]]]:
    """Yield new, changed and deleted rows, each group with its name; empty groups are left out."""
    groups = {
        "new": [row for row in rows if row.before is None],
        "changed": [row for row in rows if row.before is not None and row.now is not None],
        "deleted": [row for row in rows if row.before is not None and row.now is None],
    }
    return ((kind, members) for kind, members in groups.items() if members)
