"""How a night differs from the previous release, as values that the report shows."""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Previous:
    """Figures of the previous release; None for those that it did not leave."""

    number: int
    rows: int
    bytes: int
    recall_at_10: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    seconds: float | None = None
    kept_answers: bool = True
    """whether it left a summary with its answers to the fixed queries"""


@dataclass(frozen=True)
class ChangedRow:
    """A row that is new (before is None), deleted (now is None) or changed, with its texts."""

    id: str
    before: str | None
    now: str | None


@dataclass(frozen=True)
class QuarantinedRow:
    """A row that was set aside. row: its number in the file, -1 for the file as a whole; excerpt: the beginning of its text."""

    reason: str
    file: str
    row: int
    id: str | None = None
    detail: str | None = None
    excerpt: str | None = None


@dataclass(frozen=True)
class Neighbour:
    """An answer to a query."""

    id: str
    score: float
    text: str | None = None


@dataclass(frozen=True)
class ChangedAnswers:
    """A fixed query with the answers of the previous release and of this one, best first."""

    query: str
    before: tuple[Neighbour, ...]
    now: tuple[Neighbour, ...]

    @property
    def differ(self) -> bool:
        """Whether other rows are found, or the same ones in another order."""
        return [hit.id for hit in self.before] != [hit.id for hit in self.now]

    @property
    def gone(self) -> tuple[Neighbour, ...]:
        """Answers of the previous release alone."""
        return _without(self.before, self.now)

    @property
    def fresh(self) -> tuple[Neighbour, ...]:
        """Answers of this release alone."""
        return _without(self.now, self.before)


def _without(hits: tuple[Neighbour, ...], others: tuple[Neighbour, ...]) -> tuple[Neighbour, ...]:
    known = {hit.id for hit in others}
    return tuple(hit for hit in hits if hit.id not in known)


def delta(now: float, before: float | None, number: int, step: float, unit: str = "") -> str:
    """The difference with release `number` in multiples of `step`, or the remark that it is unknown."""
    if before is None:
        return f"not known of release {number}"
    steps = round((now - before) / step)
    if not steps:
        return f"as in release {number}"
    digits = max(0, len(f"{step:.6f}".rstrip("0").partition(".")[2]))
    return f"{steps * step:+,.{digits}f}{unit} since release {number}".replace("-", "\u2212")


def kinds(rows: tuple[ChangedRow, ...]) -> Iterator[tuple[str, list[ChangedRow]]]:
    """The rows by kind: new, changed, deleted; kinds without rows are left out."""
    parts = {
        "new": [row for row in rows if row.before is None],
        "changed": [row for row in rows if row.before is not None and row.now is not None],
        "deleted": [row for row in rows if row.now is None],
    }
    return ((kind, found) for kind, found in parts.items() if found)
