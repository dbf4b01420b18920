"""Render the page of an evaluation: scores of candidates with intervals and differences."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Any

from markupsafe import Markup

from pipeline.charts.evaluation import COLOURS, difference_chart
from pipeline.evaluate.bootstrap import ScoreEstimate
from pipeline.report.evaluation_report import AverageRow, EvaluationReport, TaskRow
from pipeline.report.formats import signed, two_decimals
from pipeline.report.page import Filters, render_template


@dataclass(frozen=True)
class TaskGroup:
    """Tasks of one kind and metric, whose scores are comparable."""

    metric: str
    """part of the metric's name that all tasks share"""
    rows: tuple[TaskRow, ...]
    """results of the tasks"""
    metric_details: tuple[str, ...]
    """remaining part of the metric's name for each task, mostly empty"""
    averages: tuple[AverageRow, ...]
    """averages over these tasks"""
    chart: Markup | None
    """chart of differences, or None"""

    @property
    def has_intervals(self) -> bool:
        """True if any score has an interval."""
        return any(score.low is not None for row in self.rows for score in row.scores)


def render(report: EvaluationReport) -> str:
    """Render the page; all texts are escaped."""
    filters: Filters = {
        "score": partial(two_decimals, missing="not defined"),
        "signed": signed,
        "interval": lambda estimate: estimate.interval(two_decimals),
        "signed_interval": lambda estimate: estimate.interval(signed),
    }
    return render_template(
        "evaluation.html.j2",
        filters,
        report=report,
        groups=groups(report),
        question=question(report),
        verdict=verdict(report),
        colours=COLOURS,
    )


def groups(report: EvaluationReport) -> list[TaskGroup]:
    """Group tasks by kind and by the first word of the metric, in order of first appearance."""
    return [
        _group(tuple(row for row in report.rows if _group_key(row) == key), report.averages)
        for key in dict.fromkeys(map(_group_key, report.rows))
    ]


def _group_key(row: TaskRow) -> tuple[str, str]:
    return row.kind, row.metric.split(", ")[0]


def _group(rows: tuple[TaskRow, ...], averages: Sequence[AverageRow]) -> TaskGroup:
    metric_parts = [row.metric.split(", ") for row in rows]
    same_parts = takewhile(lambda parts: len(set(parts)) == 1, zip(*metric_parts, strict=False))
    common = [parts[0] for parts in same_parts]
    metric, tasks = ", ".join(common), {row.task for row in rows}
    return TaskGroup(
        metric,
        rows,
        metric_details=tuple(", ".join(parts[len(common) :]) for parts in metric_parts),
        averages=tuple(average for average in averages if tasks.issuperset(average.members)),
        chart=_chart(metric, rows),
    )


def _chart(metric: str, rows: Sequence[TaskRow]) -> Markup | None:
    """Draw the chart of differences; None without intervals, because dots alone would look significant."""
    by_task = [(row.task, row.differences[1:]) for row in rows]
    if not any(estimate and estimate.low is not None for _, row in by_task for estimate in row):
        return None
    return difference_chart(by_task, metric)


def question(report: EvaluationReport) -> str:
    """Return the heading of the page, which `verdict` answers."""
    names = [candidate.name for candidate in report.candidates]
    if len(names) == 1:
        return f"How good is {names[0]}?"
    return (
        f"Is {names[1]} better than {names[0]}?"
        if len(names) == 2
        else f"Which of {len(names)} candidates is the best?"
    )


def verdict(report: EvaluationReport) -> list[str]:
    """Summarize on how many tasks each further candidate is better or worse than the first one.

    A single candidate is summarized by its scores.
    """
    count, sentences = len(report.rows), list[str]()
    if len(report.candidates) == 1:
        sentences += [_score_range(group) for group in groups(report)]
    for number, candidate in enumerate(report.candidates[1:], 1):
        differences = [row.differences[number] or ScoreEstimate(None) for row in report.rows]
        defined = (delta for delta in differences if delta.value is not None)
        with_interval = [delta for delta in defined if delta.low is not None]
        is_better = [(delta.value or 0.0) > 0 for delta in with_interval if delta.excludes_zero]
        task_counts = {
            "better": is_better.count(True),
            "worse": is_better.count(False),
            "not significantly different": len(with_interval) - len(is_better),
            "without an interval": count - len(with_interval),
        }
        if with_interval:
            results = ", ".join(f"{result} on {tasks}" for result, tasks in task_counts.items() if tasks)
            sentences.append(f"Compared with {report.candidates[0].name}, {candidate.name} is {results}.")
    return [*sentences, f"Measured on {count} task{'s' if count > 1 else ''}."] if count else sentences


def _score_range(group: TaskGroup) -> str:
    """Describe the lowest and the highest score of the first candidate."""
    values = [value for row in group.rows if (value := row.scores[0].value) is not None]
    if not values:
        return f"{group.metric}: not defined."
    low, high = two_decimals(min(values)), two_decimals(max(values))
    return f"{group.metric}: {low}." if low == high else f"{group.metric}: {low} to {high}."


def split_facts(
    facts: Sequence[Mapping[str, Any]],
) -> tuple[dict[str, str], dict[str, tuple[str, ...]]]:
    """Format the facts about a task, divided into shared facts and facts that differ between candidates.

    Args:
        facts: one mapping for each candidate.

    Returns:
        The text of each shared fact, and the texts of each other fact, one for each candidate; by name.
    """
    shared, differing = dict[str, str](), dict[str, tuple[str, ...]]()
    for name in dict.fromkeys(name for candidate_facts in facts for name in candidate_facts):
        texts = tuple(_format_fact(candidate_facts.get(name)) for candidate_facts in facts)
        if len(set(texts)) > 1:
            differing[name.replace("_", " ")] = texts
        elif texts[0]:
            shared[name.replace("_", " ")] = texts[0]
    return shared, differing


def _format_fact(value: Any) -> str:
    """Format a value as text; None and empty values become empty."""
    if value in (None, "", [], {}):
        return ""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_format_fact(item)}" for name, item in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_format_fact, value))
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
