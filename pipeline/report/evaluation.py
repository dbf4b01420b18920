"""Render the page of an evaluation: scores of candidates with intervals and differences."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Any

from markupsafe import Markup

from pipeline.charts.frame import ChartFrame, dot, minus, rule, shorten, svg, text_at, ticks
from pipeline.evaluate.bootstrap import ScoreEstimate
from pipeline.report.evaluation_report import AverageRow, EvaluationReport, TaskRow
from pipeline.report.formats import signed, two_decimals
from pipeline.report.page import Filters, render_template

WIDTH = 600  # pixels; wider than other charts, because of the task names
_LEFT, _RIGHT, _TOP, _BOTTOM = 140, 12, 8, 40  # margins in pixels
_ROW_HEIGHT, _DOT_STEP = 24, 7  # pixels: height of a task's row, and distance between the dots in it
_MAX_NAME = 24  # characters of a task's name
_MARGIN = 1.08  # limit of the axis, as a multiple of the largest value, so that no dot is cut off at the edge
COLOURS = 5  # candidates beyond this number get the first colours again


def difference_chart(rows: Sequence[tuple[str, Sequence[ScoreEstimate | None]]], unit: str) -> Markup:
    """Draw the differences from the first candidate, one row per task.

    Each further candidate has a dot, and a line for its interval. Right of the centre line is better.

    Args:
        rows: name of each task, with the difference of each further candidate; None if it has no score.
        unit: unit of the differences.
    """
    differences = [estimate for _, row in rows for estimate in row if estimate is not None]
    values = (x for estimate in differences for x in (estimate.value, estimate.low, estimate.high))
    ends = [abs(x) for x in values if x is not None]
    limit = max(ends, default=0.0) * _MARGIN or 1.0
    frame = ChartFrame((-limit, limit), (0, 1), left=_LEFT, right=WIDTH - _RIGHT)
    base = _TOP + _ROW_HEIGHT * len(rows)  # pixel of the x axis
    height = base + _BOTTOM
    return svg(
        f"Differences in {unit} with their intervals",
        *(
            rule(frame.px(x), _TOP, frame.px(x), base, "zero" if x == 0 else "grid")
            + text_at(frame.px(x), base + 17, _signed(x), "middle")
            for x in ticks(-limit, limit, 8)
        ),
        *(
            _row(frame, name, row, _TOP + _ROW_HEIGHT * (number + 0.5))
            for number, (name, row) in enumerate(rows)
        ),
        text_at((frame.left + frame.right) / 2, height - 5, f"difference in {unit}", "middle title"),
        width=WIDTH,
        height=height,
    )


def _row(frame: ChartFrame, name: str, differences: Sequence[ScoreEstimate | None], y: float) -> str:
    """Draw a task's name and, below each other, the candidates' differences, centred at pixel `y`."""
    defined = ((number, estimate) for number, estimate in enumerate(differences) if estimate)
    present = [(number, estimate) for number, estimate in defined if estimate.value is not None]
    first_y = y - _DOT_STEP * (len(present) - 1) / 2
    return text_at(_LEFT - 12, y + 4, shorten(name, _MAX_NAME), "end") + "".join(
        _dot_with_interval(frame, estimate, number % COLOURS, first_y + _DOT_STEP * line)
        for line, (number, estimate) in enumerate(present)
    )


def _dot_with_interval(frame: ChartFrame, difference: ScoreEstimate, colour: int, y: float) -> str:
    value, low, high = difference.value, difference.low, difference.high
    assert value is not None, "undefined differences are left out"
    title, interval = _signed(value), ""
    if low is not None and high is not None:
        title += f", {_signed(low)} to {_signed(high)}"
        interval = rule(frame.px(low), y, frame.px(high), y, f"interval c{colour}")
    return interval + dot(frame.px(value), round(y, 1), f"c{colour}", 4, title)


def _signed(value: float) -> str:
    """Format with three digits, a sign and a true minus: +1.2, −0.35, 0."""
    return minus(f"{value:+.3g}") if value else "0"


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
        Two mappings by name: the text of each shared fact; one text per candidate of each differing fact.
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
