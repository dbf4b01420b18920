"""Page of an evaluation: scores of candidates with intervals and differences."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from typing import Any

from markupsafe import Markup

from pipeline.charts.evaluation import COLOURS, TaskDifference, difference_chart
from pipeline.report.formats import signed, two_digits
from pipeline.report.page import Filters, fill


@dataclass(frozen=True)
class ScoreEstimate:
    """A value with its 95 % interval; None if it is undefined or has no interval."""

    value: float | None
    low: float | None = None
    high: float | None = None

    @property
    def excludes_zero(self) -> bool:
        """True if a difference is significant."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)

    def interval(self, form: Callable[[float | None], str]) -> str:
        """Format the interval: 70.12 to 74.40; empty if there is none."""
        return "" if self.low is None or self.high is None else f"{form(self.low)} to {form(self.high)}"


@dataclass(frozen=True)
class EvaluatedCandidate:
    """An evaluated encoder with its transform.

    Attributes:
        name: displayed name.
        encoder: path or name of the encoder.
        dim: dimension of its vectors.
        space_id: id of its vector space.
        transform: description of the transform, or None.
        transform_id: id of the transform, or None.
        numerics: number of sentence vectors by the arithmetic that computed them.
        bytes: size of the encoder's files.
        width: dimension of the compared vectors.
        sentences_per_s: speed of one worker, in the evaluation that encoded most; None if never measured.
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
class TaskRow:
    """Results of a task.

    Attributes:
        task: name of the task.
        kind: kind of task.
        metric: name of the metric.
        count: number of pairs, texts or queries.
        figures: one score per candidate.
        differences: differences from the first candidate, None for itself.
        parts: further metrics by name, one value per candidate.
        facts: information that all candidates share.
        own: information that differs, one text per candidate.
        description: explanation of the kind of task.
    """

    task: str
    kind: str
    metric: str
    count: int
    figures: tuple[ScoreEstimate, ...]
    differences: tuple[ScoreEstimate | None, ...]
    parts: tuple[tuple[str, tuple[float | None, ...]], ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    own: tuple[tuple[str, tuple[str, ...]], ...] = ()
    description: str = ""


@dataclass(frozen=True)
class DifferingPair:
    """Two sentences with a gold score, and their similarities and ranks by two candidates.

    Attributes:
        left: first sentence.
        right: second sentence.
        gold: human score.
        similarities: by each candidate.
        ranks: proportion of pairs that are less similar, by each candidate.
    """

    left: str
    right: str
    gold: str
    similarities: tuple[float, float]
    ranks: tuple[float, float]


@dataclass(frozen=True)
class Disagreement:
    """Pairs of a task whose ranks by two candidates differ most."""

    task: str
    first: str
    other: str
    pairs: tuple[DifferingPair, ...]


@dataclass(frozen=True)
class AverageRow:
    """An average below its tasks, with a label that lists them."""

    label: str
    members: tuple[str, ...]
    complete: bool
    figures: tuple[ScoreEstimate, ...]
    differences: tuple[ScoreEstimate | None, ...]


@dataclass(frozen=True)
class Chart:
    """A chart with heading, note, and key of its colours."""

    heading: str
    svg: Markup
    note: str = ""
    key: str | Markup = ""


@dataclass(frozen=True)
class Section:
    """A further section of the page, such as the geometry of the space; the table has a header row."""

    heading: str
    charts: tuple[Chart, ...] = ()
    table: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class EvaluationReport:
    """Values of the page; empty ones are left out."""

    root: str
    id: str
    created: str | None = None
    candidates: tuple[EvaluatedCandidate, ...]
    rows: tuple[TaskRow, ...] = ()
    averages: tuple[AverageRow, ...] = ()
    missing: tuple[tuple[str, str], ...] = ()
    """(task, reason)"""
    warnings: tuple[str, ...] = ()
    resamples: int = 0
    disagreements: tuple[Disagreement, ...] = ()
    sections: tuple[Section, ...] = ()
    settings: str = ""
    """YAML"""
    packages: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TaskGroup:
    """Tasks of one kind and metric, whose scores are comparable.

    Attributes:
        metric: common part of the metrics.
        rows: results of the tasks.
        rests: remaining part of each task's metric, mostly empty.
        averages: averages over these tasks.
        chart: chart of differences, or None.
    """

    metric: str
    rows: tuple[TaskRow, ...]
    rests: tuple[str, ...]
    averages: tuple[AverageRow, ...]
    chart: Markup | None

    @property
    def has_intervals(self) -> bool:
        """True if a score has an interval; counts, and pairs that share texts, have none."""
        return any(figure.low is not None for row in self.rows for figure in row.figures)


def render(report: EvaluationReport) -> str:
    """Render the page; all texts are escaped."""
    filters: Filters = {
        "figure": partial(two_digits, missing="not defined"),
        "signed": signed,
        "interval": lambda estimate: estimate.interval(two_digits),
        "signed_interval": lambda estimate: estimate.interval(signed),
    }
    return fill(
        "evaluation.html.j2",
        filters,
        report=report,
        groups=groups(report),
        verdict=verdict(report),
        colours=COLOURS,
    )


def groups(report: EvaluationReport) -> list[TaskGroup]:
    """Group tasks by kind and by the first word of the metric, in order of first appearance."""
    return [
        _group(tuple(row for row in report.rows if _sort_of(row) == sort), report.averages)
        for sort in dict.fromkeys(map(_sort_of, report.rows))
    ]


def _sort_of(row: TaskRow) -> tuple[str, str]:
    return row.kind, row.metric.split(", ")[0]


def _group(rows: tuple[TaskRow, ...], averages: Sequence[AverageRow]) -> TaskGroup:
    parts = [row.metric.split(", ") for row in rows]
    common = [words[0] for words in takewhile(lambda words: len(set(words)) == 1, zip(*parts, strict=False))]
    metric, tasks = ", ".join(common), {row.task for row in rows}
    return TaskGroup(
        metric,
        rows,
        rests=tuple(", ".join(each[len(common) :]) for each in parts),
        averages=tuple(each for each in averages if tasks.issuperset(each.members)),
        chart=_chart(metric, rows),
    )


def _chart(metric: str, rows: Sequence[TaskRow]) -> Markup | None:
    """Draw the chart of differences; None without intervals, because dots alone would look significant."""
    drawn = [(row.task, [_difference(estimate) for estimate in row.differences[1:]]) for row in rows]
    if not any(found and found.low is not None for _, differences in drawn for found in differences):
        return None
    return difference_chart(drawn, metric)


def _difference(estimate: ScoreEstimate | None) -> TaskDifference | None:
    if estimate is None or estimate.value is None:
        return None
    return TaskDifference(estimate.value, estimate.low, estimate.high)


def verdict(report: EvaluationReport) -> list[str]:
    """Summarize on how many tasks each further candidate is better or worse than the first one."""
    count = len(report.rows)
    sentences = [f"Measured on {count} task{'s' if count > 1 else ''}."] if count else []
    for number, candidate in enumerate(report.candidates[1:], 1):
        found = [row.differences[number] or ScoreEstimate(None) for row in report.rows]
        lows = [each.low for each in found if each.value is not None and each.low is not None]
        clear = [(each.value or 0.0) > 0 for each in found if each.value is not None and each.excludes_zero]
        parts = {
            "better": clear.count(True),
            "worse": clear.count(False),
            "not significantly different": len(lows) - len(clear),
            "without an interval": count - len(lows),
        }
        if lows:
            results = ", ".join(f"{word} on {tasks}" for word, tasks in parts.items() if tasks)
            sentences.append(f"Compared with {report.candidates[0].name}, {candidate.name} is {results}.")
    return sentences


def facts_in_words(
    facts: Sequence[Mapping[str, Any]],
) -> tuple[tuple[tuple[str, str], ...], tuple[tuple[str, tuple[str, ...]], ...]]:
    """Split the facts of all candidates into common ones and different ones, as text."""
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
