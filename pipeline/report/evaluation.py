"""The page of an evaluation: candidates side by side, with intervals and differences; one HTML file, no network, no script."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, takewhile
from typing import Any

from markupsafe import Markup

from pipeline.charts.evaluation import COLOURS, difference_chart
from pipeline.report.disagreements import Disagreement
from pipeline.report.page import fill

_MEANINGS = {
    "sts": "Do similarities order pairs as people's scores do? 100: the same order. Under all, over all pairs of a task; mean and wmean are over its subsets.",
    "transfer": "Share of texts that a linear classifier of the frozen vectors gets right. lbfgs and sgd are two ways to fit it; their figures do not compare.",
    "pairs": "Do pairs that mean the same come before the others when sorted by similarity? 100: all of them do.",
    "triplets": "Share of triplets whose anchor is more like its positive than its negative.",
    "retrieval": "Do searches find what belongs to the query, and near the top? 100: always first.",
    "duplicates": "Are the most similar pairs among all texts those that mean the same? Without known ones the pairs are only counted.",
}


@dataclass(frozen=True)
class Figure:
    """A value with its 95 % interval; None where it is not defined, or has no interval."""

    value: float | None
    low: float | None = None
    high: float | None = None

    @property
    def excludes_zero(self) -> bool:
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


@dataclass(frozen=True)
class Candidate:
    """What was evaluated. transform: in words; numerics: sentence vectors by the arithmetic that made them.

    bytes: of the encoder's files; width: of the vectors that are compared.
    sentences_per_s: of one worker, in the evaluation that encoded most; None where it was never measured.
    """

    name: str
    encoder: str
    dim: int
    space_id: str
    transform: str | None = None
    transform_id: str | None = None
    numerics: Mapping[str, int] = field(default_factory=dict)
    bytes: int = 0
    width: int = 0
    sentences_per_s: float | None = None


@dataclass(frozen=True)
class Row:
    """A task. figures: one per candidate; differences with the first candidate: None for that one; parts: further figures by name, one value per candidate.

    facts: what holds for all candidates; own: what each candidate has for itself, such as its thresholds, one text per candidate.
    """

    task: str
    kind: str
    metric: str
    count: int
    figures: tuple[Figure, ...]
    differences: tuple[Figure | None, ...]
    parts: tuple[tuple[str, tuple[float | None, ...]], ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    own: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True)
class Average:
    """A line below its tasks. label says over which."""

    label: str
    members: tuple[str, ...]
    complete: bool
    figures: tuple[Figure, ...]
    differences: tuple[Figure | None, ...]


@dataclass(frozen=True)
class Chart:
    """A drawn chart with its words. key: what its colours mean."""

    heading: str
    svg: Markup
    note: str = ""
    key: str | Markup = ""


@dataclass(frozen=True)
class Section:
    """A part of the page that others draw, such as the geometry of the space. table: header and rows."""

    heading: str
    charts: tuple[Chart, ...] = ()
    table: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Report:
    """What the page shows; whatever is empty is left out."""

    root: str
    id: str
    created: str | None = None
    candidates: tuple[Candidate, ...]
    rows: tuple[Row, ...] = ()
    averages: tuple[Average, ...] = ()
    missing: tuple[tuple[str, str], ...] = ()
    """(task, why)"""
    warnings: tuple[str, ...] = ()
    resamples: int = 0
    disagreements: tuple[Disagreement, ...] = ()
    sections: tuple[Section, ...] = ()
    settings: str = ""
    """YAML"""
    packages: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Group:
    """Tasks of one kind and metric: the only ones whose figures compare. metric: what theirs have in common; rests: what else each one's says, mostly nothing."""

    metric: str
    rows: tuple[Row, ...]
    rests: tuple[str, ...]
    averages: tuple[Average, ...]
    chart: Markup | None

    @property
    def meaning(self) -> str:
        """The kind of task in a sentence; empty for one that has none here."""
        return _MEANINGS.get(self.rows[0].kind, "")

    @property
    def has_intervals(self) -> bool:
        """Some have none, whatever was asked for: such as counts, and pairs that share texts."""
        return any(figure.low is not None for row in self.rows for figure in row.figures)


def render(report: Report) -> str:
    """The page, complete in itself (UTF-8). Every text from outside is escaped."""
    filters: dict[str, Callable[..., Any]] = {
        "figure": _figure,
        "signed": _signed,
        "interval": _interval,
        "signed_interval": _signed_interval,
    }
    return fill(
        "evaluation.html.j2",
        filters,
        report=report,
        groups=groups(report),
        verdict=verdict(report),
        colours=COLOURS,
    )


def groups(report: Report) -> list[Group]:
    """By kind and by the first word of the metric, in order of first appearance."""
    order = list(dict.fromkeys(map(_sort_of, report.rows)))
    ordered = sorted(report.rows, key=lambda row: order.index(_sort_of(row)))
    return [_group(tuple(rows), report.averages) for _, rows in groupby(ordered, key=_sort_of)]


def _sort_of(row: Row) -> tuple[str, str]:
    return row.kind, row.metric.split(", ")[0]


def _group(rows: tuple[Row, ...], averages: Sequence[Average]) -> Group:
    parts = [row.metric.split(", ") for row in rows]
    common = [words[0] for words in takewhile(lambda words: len(set(words)) == 1, zip(*parts, strict=False))]
    metric, there = ", ".join(common), {row.task for row in rows}
    own = tuple(each for each in averages if there.issuperset(each.members))
    return Group(
        metric, rows, tuple(", ".join(each[len(common) :]) for each in parts), own, _chart(metric, rows)
    )


def _chart(metric: str, rows: Sequence[Row]) -> Markup | None:
    """None without any interval: a bare dot would look like a finding."""
    drawn = [(row.task, [_dot(figure) for figure in row.differences[1:]]) for row in rows]
    return (
        difference_chart(drawn, metric)
        if any(dot and dot[1] is not None for _, dots in drawn for dot in dots)
        else None
    )


def _dot(figure: Figure | None) -> tuple[float, float | None, float | None] | None:
    return (
        (figure.value, figure.low, figure.high) if figure is not None and figure.value is not None else None
    )


def verdict(report: Report) -> list[str]:
    """What was measured, and for each candidate after the first on how many tasks it is better, worse, or not told apart from that one."""
    count = len(report.rows)
    said = [f"Measured on {count} task{'s' if count > 1 else ''}."] if count else []
    for place, candidate in enumerate(report.candidates[1:], 1):
        found = [
            difference
            for row in report.rows
            if (difference := row.differences[place]) is not None
            and difference.value is not None
            and difference.low is not None
        ]
        clear = [
            difference.value > 0
            for difference in found
            if difference.excludes_zero and difference.value is not None
        ]
        parts = {
            "better": clear.count(True),
            "worse": clear.count(False),
            "not told apart": len(found) - len(clear),
            "without an interval": count - len(found),
        }
        if found:
            said.append(
                f"Compared with {report.candidates[0].name}, {candidate.name} is {', '.join(f'{word} on {number}' for word, number in parts.items() if number)}."
            )
    return said


def _figure(value: float | None) -> str:
    """Two decimals, as correlations and accuracies x100 are given; a true minus sign."""
    return "not defined" if value is None else f"{value:.2f}".replace("-", "\u2212")


def _signed(value: float | None) -> str:
    return "" if value is None else f"{value:+.2f}".replace("-", "\u2212") if round(value, 2) else "0.00"


def _interval(figure: Figure) -> str:
    """70.12 to 74.40; empty where there is none."""
    return (
        ""
        if figure.low is None or figure.high is None
        else f"{_figure(figure.low)} to {_figure(figure.high)}"
    )


def _signed_interval(figure: Figure) -> str:
    """-1.20 to +0.40, with true minus signs."""
    return (
        ""
        if figure.low is None or figure.high is None
        else f"{_signed(figure.low)} to {_signed(figure.high)}"
    )


def facts_in_words(
    facts: Sequence[Mapping[str, Any]],
) -> tuple[tuple[tuple[str, str], ...], tuple[tuple[str, tuple[str, ...]], ...]]:
    """What a task says of each candidate beside its figures: facts that all of them share, and those that differ, with a text for each."""
    common, own = [], []
    for name in dict.fromkeys(name for each in facts for name in each):
        texts = tuple(
            "" if (value := each.get(name)) in (None, "", [], {}) else _in_words(value) for each in facts
        )
        if len(set(texts)) > 1:
            own.append((name.replace("_", " "), texts))
        elif texts[0]:
            common.append((name.replace("_", " "), texts[0]))
    return tuple(common), tuple(own)


def _in_words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_in_words(each)}" for name, each in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_in_words, value))
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
