"""Build the report page and the JSON object of an evaluation, and store them."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from pipeline.config import canonical
from pipeline.evaluate import Score
from pipeline.evaluate.bootstrap import ScoreEstimate, estimate
from pipeline.evaluate.tasks import STS, YEARLY_STS, averages
from pipeline.flows.evaluate.candidates import ResolvedCandidate
from pipeline.flows.evaluate.evaluate import Evaluation
from pipeline.flows.evaluate.retrieval_examples import retrieval_section
from pipeline.flows.evaluate.scoring import MeasuredTask, Result
from pipeline.report.evaluation import render, split_facts
from pipeline.report.evaluation_report import (
    AverageRow,
    EvaluatedCandidate,
    EvaluationReport,
    Section,
    TaskRow,
)
from pipeline.report.formats import two_decimals
from pipeline.report.geometry import sections
from pipeline.report.mask_words import sections as mask_words_sections
from pipeline.report.token_bias import sections as token_bias_sections
from pipeline.store.files.open_store import open_store

PUBLISHED_AGGREGATIONS = ("all", "wmean")
"""one correlation over all pairs (SBERT, SimCSE, PromptBERT), and the mean over subsets weighted by their
pairs (BERT-flow, whitening)"""


@dataclass(frozen=True)
class AggregatedScore:
    """Score of a candidate on a task, or its average over tasks, by one aggregation."""

    task: str
    """name of the task, or label of the average"""
    candidate: str
    """name of the candidate"""
    aggregation: str
    """one of `PUBLISHED_AGGREGATIONS`"""
    value: float | None
    """Spearman x100; None if undefined"""


def aggregated_scores(measured: Sequence[MeasuredTask], names: Sequence[str]) -> list[AggregatedScore]:
    """Return the scores of the yearly STS sets by each published aggregation, then their average.

    Args:
        measured: tasks with each candidate's result, in the order of `names`.
        names: names of the candidates.

    Returns:
        Scores by task, candidate and aggregation; empty without a yearly set. The average is over all
        measured sets of the published average. These include STS-B and SICK-R, whose single correlation is
        over all pairs in either aggregation.
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


@dataclass(frozen=True)
class StoredEvaluation:
    """The page and the JSON object of an evaluation, with their URIs."""

    page: EvaluationReport
    facts: dict[str, Any]
    """the JSON object"""
    report: str
    """URI of the page"""
    json: str
    """URI of the JSON object"""


def store_evaluation(evaluation: Evaluation, created: str) -> StoredEvaluation:
    """Store the evaluation as a page and as a JSON object, in the folder of its id.

    Args:
        evaluation: the evaluation.
        created: date and time, as shown on the page.
    """
    store = open_store(evaluation.root)
    page, facts = page_of(evaluation, created), facts_of(evaluation)
    report, json = f"{evaluation.id}/report.html", f"{evaluation.id}/evaluation.json"
    store.write(json, canonical(facts) + b"\n")
    store.write(report, render(page).encode())
    return StoredEvaluation(page, facts, store.uri_of(report), store.uri_of(json))


def page_of(evaluation: Evaluation, created: str) -> EvaluationReport:
    """Collect the values of the page."""
    return EvaluationReport(
        root=evaluation.root,
        id=evaluation.id,
        created=created,
        candidates=tuple(map(_candidate, evaluation.candidates, evaluation.numerics, evaluation.speeds)),
        disagreements=evaluation.disagreements,
        rows=tuple(map(_task_row, evaluation.measured)),
        averages=tuple(_average_rows(evaluation)),
        missing=tuple((each.name, each.reason) for each in evaluation.missing),
        warnings=tuple(_warnings(evaluation)),
        resamples=evaluation.resamples,
        sections=tuple(_sections(evaluation)),
        settings=evaluation.settings,
        packages=evaluation.packages,
    )


def _sections(evaluation: Evaluation) -> Iterator[Section]:
    """Yield the sections of the page after the tables of scores."""
    if scores := _aggregated_scores(evaluation):
        yield aggregation_section(scores)
    yield from retrieval_section(evaluation.retrieved)
    if evaluation.geometry:
        yield from sections(evaluation.geometry)
    if evaluation.token_bias:
        yield from token_bias_sections(evaluation.token_bias)
    if evaluation.mask_words:
        yield from mask_words_sections(evaluation.mask_words)


def _aggregated_scores(evaluation: Evaluation) -> list[AggregatedScore]:
    return aggregated_scores(evaluation.measured, [each.name for each in evaluation.candidates])


def facts_of(evaluation: Evaluation) -> dict[str, Any]:
    """Build the JSON object: the values of the page, and every further metric. Undefined values are null."""
    names = [each.name for each in evaluation.candidates]
    rows, means = [_task_row(each) for each in evaluation.measured], list(_average_rows(evaluation))
    return {
        "id": evaluation.id,
        "resamples": evaluation.resamples,
        "candidates": [
            each.facts() | {"numerics": numerics, "sentences_per_s": speed}
            for each, numerics, speed in zip(
                evaluation.candidates, evaluation.numerics, evaluation.speeds, strict=True
            )
        ],
        "results": list(_results(evaluation, rows)),
        "differences": [
            {"task": row.task, **difference} for row in rows for difference in _differences(row, names)
        ],
        "averages": [facts for average in means for facts in _average_facts(average, names)],
        "average_differences": [
            {"label": average.label, **difference}
            for average in means
            for difference in _differences(average, names)
        ],
        "aggregations": [asdict(each) for each in _aggregated_scores(evaluation)],
        "missing": [{"task": each.name, "reason": each.reason} for each in evaluation.missing],
        "disagreements": [asdict(each) for each in evaluation.disagreements],
        "retrieved": [asdict(each) for each in evaluation.retrieved],
        "warnings": list(_warnings(evaluation)),
        "geometry": evaluation.geometry.model_dump(mode="json") if evaluation.geometry else None,
        "mask_words": evaluation.mask_words.model_dump(mode="json") if evaluation.mask_words else None,
        "token_bias": [each.model_dump(mode="json") for each in evaluation.token_bias],
        "sentences_encoded": evaluation.encoded,
        "settings": evaluation.settings,
        "packages": evaluation.packages,
    }


def _results(evaluation: Evaluation, rows: Sequence[TaskRow]) -> Iterator[dict[str, Any]]:
    """Yield the result of each candidate on each task as a JSON object."""
    names = [each.name for each in evaluation.candidates]
    fields = {"count", "metrics", "facts", "warnings", "numerics"}
    for row, measured in zip(rows, evaluation.measured, strict=True):
        for name, score, resampled in zip(names, row.scores, measured.results, strict=True):
            yield {
                "task": row.task,
                "kind": row.kind,
                "candidate": name,
                "metric": row.metric,
                **asdict(score),
                **resampled.result.model_dump(mode="json", include=fields),
            }


def _differences(row: TaskRow | AverageRow, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the difference between each other candidate and the first one, as a JSON object."""
    for name, difference in zip(names, row.differences, strict=True):
        if difference is not None:
            yield {
                "candidate": name,
                "against": names[0],
                **asdict(difference),
                "excludes_zero": difference.excludes_zero,
            }


def _candidate(
    candidate: ResolvedCandidate, numerics: dict[str, int], speed: float | None
) -> EvaluatedCandidate:
    overrides = (f"{name}={value}" for name, value in candidate.overrides.items())
    prompts = (f"{prompt!r} before {texts}" for texts, prompt in candidate.prompts.items())
    shown = ", ".join(prompts) if any(candidate.prompts.values()) else ""
    return EvaluatedCandidate(
        candidate.name,
        " ".join([candidate.encoder.path, *overrides]) + (f" ({shown})" if shown else ""),
        candidate.dim,
        candidate.space_id,
        candidate.transform_name
        and candidate.transform_name + (f" to {candidate.k} components" if candidate.k else ""),
        candidate.transform_id,
        numerics,
        bytes=candidate.bytes,
        width=candidate.k or candidate.dim,
        sentences_per_s=speed,
    )


def _task_row(measured: MeasuredTask) -> TaskRow:
    results = [each.result for each in measured.results]
    draws = [each.draws.numbers() if each.draws else None for each in measured.results]
    names = dict.fromkeys(name for result in results for name in result.metrics)
    return TaskRow(
        measured.task.name,
        measured.task.kind,
        results[0].metric,
        results[0].count,
        *_estimates([result.value for result in results], draws),
        {name: tuple(result.metrics.get(name) for result in results) for name in names},
        *split_facts([result.facts for result in results]),
        measured.task.description,
    )


def _average_facts(average: AverageRow, candidates: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the JSON object of an average over tasks for each candidate."""
    for name, score in zip(candidates, average.scores, strict=True):
        yield {
            "label": average.label,
            "complete": average.complete,
            "tasks": list(average.members),
            "candidate": name,
            **asdict(score),
        }


def _average_rows(evaluation: Evaluation) -> Iterator[AverageRow]:
    """Yield each average over tasks, for all candidates, with intervals from the resamples."""
    measured = {each.task.name: each for each in evaluation.measured}
    averages_by_candidate = [
        averages({name: each.results[index].result.score() for name, each in measured.items()})
        for index in range(len(evaluation.candidates))
    ]
    for same_average in zip(*averages_by_candidate, strict=True):  # one average, of every candidate
        first, names = same_average[0], same_average[0].members
        values = [each.value if math.isfinite(each.value) else None for each in same_average]
        members = [measured[name] for name in names]
        draws = [_mean_draws(members, index) for index in range(len(values))]
        yield AverageRow(first.label, names, first.complete, *_estimates(values, draws))


def _mean_draws(members: Sequence[MeasuredTask], index: int) -> np.ndarray | None:
    """Average a candidate's draws over tasks: (resamples,); None if a task has none."""
    of_tasks = [each.results[index].draws for each in members]
    return np.mean([draws.numbers() for draws in of_tasks if draws], axis=0) if all(of_tasks) else None


def _estimates(
    values: Sequence[float | None], draws: Sequence[np.ndarray | None]
) -> tuple[tuple[ScoreEstimate, ...], tuple[ScoreEstimate | None, ...]]:
    """Estimate the candidates' values and their differences from the first one, with intervals.

    Differences are paired: a resample has the same rows for every candidate.

    Args:
        values: value of each candidate; None if undefined.
        draws: (resamples,) values of each candidate on the resamples; None without resamples.
    """
    first_value, first_draws = values[0], draws[0]
    differences = [
        _estimate(
            None if value is None or first_value is None else value - first_value,
            None if resampled is None or first_draws is None else resampled - first_draws,
        )
        for value, resampled in zip(values[1:], draws[1:], strict=True)
    ]
    return tuple(map(_estimate, values, draws)), (None, *differences)


def _estimate(value: float | None, draws: np.ndarray | None) -> ScoreEstimate:
    return ScoreEstimate(value) if draws is None else estimate(value, draws)


def _warnings(evaluation: Evaluation) -> Iterator[str]:
    """Yield each warning once, with its task, and with its candidates if it does not concern all of them."""
    names = [each.name for each in evaluation.candidates]
    for measured in evaluation.measured:
        task, by_warning = measured.task.name, dict[str, list[str]]()
        for name, resampled in zip(names, measured.results, strict=True):
            for warning in resampled.result.warnings:
                by_warning.setdefault(warning, []).append(name)
        for warning, candidates in by_warning.items():
            suffix = "" if len(candidates) == len(names) else f" ({', '.join(candidates)})"
            yield (warning if warning.startswith(task) else f"{task}: {warning}") + suffix
