"""Differences of a release from the previous one, as values of the release report."""

from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.charts.frame import minus


@dataclass(frozen=True)
class Previous:
    """Metrics of the previous release; None if it did not record them."""

    number: int
    rows: int
    bytes: int
    recall_at_10: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    seconds: float | None = None
    has_answers: bool = True
    """whether it stored its answers to the fixed queries"""


@dataclass(frozen=True)
class RowChange:
    """A row that is new (before is None), deleted (now is None) or changed, with its texts."""

    id: str
    before: str | None
    now: str | None


@dataclass(frozen=True)
class QuarantinedRow:
    """A quarantined row.

    Attributes:
        reason: why it was quarantined.
        file: file of the row.
        row: row number in the file, -1 for the whole file.
        id: id of the row, if known.
        detail: details of the reason.
        excerpt: beginning of its text.
    """

    reason: str
    file: str
    row: int
    id: str | None = None
    detail: str | None = None
    excerpt: str | None = None


@dataclass(frozen=True)
class Neighbour:
    """Result of a query."""

    id: str
    score: float
    text: str | None = None


@dataclass(frozen=True)
class ChangedAnswers:
    """A fixed query with the results of the previous release and of this one, best first."""

    query: str
    before: tuple[Neighbour, ...]
    now: tuple[Neighbour, ...]

    @property
    def differ(self) -> bool:
        """True if the results or their order differ."""
        return [hit.id for hit in self.before] != [hit.id for hit in self.now]

    @property
    def gone(self) -> tuple[Neighbour, ...]:
        """Results of the previous release only."""
        return _without(self.before, self.now)

    @property
    def fresh(self) -> tuple[Neighbour, ...]:
        """Results of this release only."""
        return _without(self.now, self.before)


def _without(hits: tuple[Neighbour, ...], others: tuple[Neighbour, ...]) -> tuple[Neighbour, ...]:
    known = {hit.id for hit in others}
    return tuple(hit for hit in hits if hit.id not in known)


def difference(now: float, before: float | None, number: int, step: float, unit: str = "") -> str:
    """Format the difference from release `number` in multiples of `step`."""
    if before is None:
        return f"not known of release {number}"
    steps = round((now - before) / step)
    if not steps:
        return f"as in release {number}"
    digits = max(0, len(f"{step:.6f}".rstrip("0").partition(".")[2]))
    return minus(f"{steps * step:+,.{digits}f}{unit} since release {number}")


def by_kind(rows: tuple[RowChange, ...]) -> Iterator[tuple[str, list[RowChange]]]:
    """Group the rows into new, changed and deleted ones, without empty groups."""
    parts: dict[str, list[RowChange]] = {"new": [], "changed": [], "deleted": []}
    for row in rows:
        parts["new" if row.before is None else "deleted" if row.now is None else "changed"].append(row)
    return ((kind, found) for kind, found in parts.items() if found)
