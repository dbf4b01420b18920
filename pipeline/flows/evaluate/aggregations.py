"""Scores of the yearly STS sets by both published aggregations over their subsets, side by side."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pipeline.evaluate import Score
from pipeline.evaluate.tasks import STS, YEARLY_STS, averages
from pipeline.flows.evaluate.scoring import MeasuredTask, Result
from pipeline.report.evaluation_report import Section
from pipeline.report.formats import two_decimals

PUBLISHED_AGGREGATIONS = ("all", "wmean")
"""one correlation over all pairs (SBERT, SimCSE, PromptBERT), and the mean over subsets weighted by their
pairs (BERT-flow, whitening)"""


@dataclass(frozen=True)
class AggregatedScore:
    """Score of a candidate on a task, or its average over tasks, by one aggregation.

    Attributes:
        task: name of the task, or label of the average.
        candidate: name of the candidate.
        aggregation: one of `PUBLISHED_AGGREGATIONS`.
        value: Spearman x100; None if undefined.
    """

    task: str
    candidate: str
    aggregation: str
    value: float | None


def aggregated_scores(measured: Sequence[MeasuredTask], names: Sequence[str]) -> list[AggregatedScore]:
    """Return the scores of the yearly STS sets by each published aggregation, then their average.

    Args:
        measured: tasks with each candidate's result, in the order of `names`.
        names: names of the candidates.

    Returns:
        Scores by task, candidate and aggregation; empty without a yearly set. The average is over all
        measured sets that the published average has: also STS-B and SICK-R, single sets whose correlation is
        always over all pairs.
    """
    sets = {each.task.name: each for each in measured if each.task.name in STS and each.task.kind == "sts"}
    if not any(name in YEARLY_STS for name in sets):
        return []
    columns = {
        (name, aggregation): dict(_scores(sets, index, aggregation))
        for index, name in enumerate(names)
        for aggregation in PUBLISHED_AGGREGATIONS
    }
    yearly = [
        AggregatedScore(task, *column, _defined(scores[task].value))
        for task in sets
        if task in YEARLY_STS
        for column, scores in columns.items()
    ]
    means = [
        AggregatedScore(average.label, *column, _defined(average.value))
        for column, scores in columns.items()
        for average in averages(scores)
    ]
    return yearly + means


def _scores(sets: Mapping[str, MeasuredTask], index: int, aggregation: str) -> Iterator[tuple[str, Score]]:
    """Yield the score of the candidate `index` on each set by the aggregation, or by "all" on single sets."""
    for name, each in sets.items():
        result: Result = each.results[index].result
        value = result.metrics.get(f"Spearman {aggregation if name in YEARLY_STS else 'all'}")
        yield name, replace(result.score(), value=math.nan if value is None else value)


def _defined(value: float) -> float | None:
    return None if math.isnan(value) else value


def aggregation_section(scores: Sequence[AggregatedScore]) -> Section:
    """Build the section of the page: tasks as rows, candidates and aggregations as columns."""
    columns = list(dict.fromkeys((each.candidate, each.aggregation) for each in scores))
    several = len({candidate for candidate, _ in columns}) > 1
    header = [f"{candidate}, {name}" if several else name for candidate, name in columns]
    values = {(each.task, each.candidate, each.aggregation): each.value for each in scores}
    rows = [
        (task, *(two_decimals(values[task, *column], "not defined") for column in columns))
        for task in dict.fromkeys(each.task for each in scores)
    ]
    return Section(
        "Both published aggregations of the yearly STS sets",
        table=(("Spearman x100", *header), *rows),
        notes=(
            "all: one correlation over all pairs of a year, as published for SBERT, SimCSE and PromptBERT. "
            "wmean: the mean over its subsets, weighted by their pairs, as published for BERT-flow and "
            "whitening. The two can differ by several points, so compare each one only with "
            "published tables of the same aggregation. In an average, STS-B and SICK-R have one correlation "
            "over all pairs either way.",
        ),
    )
