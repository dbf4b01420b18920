"""The page and the JSON object of an evaluation, and their storage."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from pipeline.config import canonical
from pipeline.evaluate.bootstrap import interval
from pipeline.evaluate.tasks import averages
from pipeline.flows.evaluate.candidates import Contender
from pipeline.flows.evaluate.evaluate import Evaluation
from pipeline.flows.evaluate.scoring import MeasuredTask
from pipeline.report.evaluation import (
    AverageRow,
    EvaluatedCandidate,
    EvaluationReport,
    ScoreEstimate,
    TaskRow,
    facts_in_words,
    render,
)
from pipeline.report.geometry import sections
from pipeline.store.store import open_store


@dataclass(frozen=True)
class Kept:
    """The page and the JSON object of an evaluation, and the URIs at which they are stored."""

    page: EvaluationReport
    facts: dict[str, Any]
    report: str
    json: str


def keep(evaluation: Evaluation, created: str) -> Kept:
    """Store the evaluation as a page and as a JSON object, in a folder named by its id."""
    store = open_store(evaluation.root)
    page, facts = page_of(evaluation, created), facts_of(evaluation)
    report, json = f"{evaluation.id}/report.html", f"{evaluation.id}/evaluation.json"
    store.write(json, canonical(facts) + b"\n")
    store.write(report, render(page).encode())
    return Kept(page, facts, store.uri_of(report), store.uri_of(json))


def page_of(evaluation: Evaluation, created: str) -> EvaluationReport:
    """Return the values of the page."""
    return EvaluationReport(
        root=evaluation.root,
        id=evaluation.id,
        created=created,
        candidates=tuple(map(_candidate, evaluation.candidates, evaluation.numerics, evaluation.speeds)),
        disagreements=evaluation.disagreements,
        rows=tuple(map(_row, evaluation.measured)),
        averages=tuple(_averages(evaluation)),
        missing=tuple((each.name, each.reason) for each in evaluation.missing),
        warnings=tuple(_warnings(evaluation)),
        resamples=evaluation.resamples,
        sections=sections(evaluation.geometry) if evaluation.geometry else (),
        settings=evaluation.settings,
        packages=evaluation.packages,
    )


def facts_of(evaluation: Evaluation) -> dict[str, Any]:
    """Return the JSON object: the values of the page, and every further metric. Undefined ones are null."""
    names = [each.name for each in evaluation.candidates]
    rows, means = [_row(each) for each in evaluation.measured], list(_averages(evaluation))
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
        "averages": [
            {
                "label": average.label,
                "complete": average.complete,
                "tasks": list(average.members),
                "candidate": name,
                **asdict(figure),
            }
            for average in means
            for name, figure in zip(names, average.figures, strict=True)
        ],
        "average_differences": [
            {"label": average.label, **difference}
            for average in means
            for difference in _differences(average, names)
        ],
        "missing": [{"task": each.name, "reason": each.reason} for each in evaluation.missing],
        "disagreements": [asdict(each) for each in evaluation.disagreements],
        "warnings": list(_warnings(evaluation)),
        "geometry": evaluation.geometry.model_dump(mode="json") if evaluation.geometry else None,
        "sentences_encoded": evaluation.encoded,
        "settings": evaluation.settings,
        "packages": evaluation.packages,
    }


def _results(evaluation: Evaluation, rows: Sequence[TaskRow]) -> Iterator[dict[str, Any]]:
    """Yield the result of each candidate on each task as a JSON object."""
    names = [each.name for each in evaluation.candidates]
    further = {"count", "figures", "facts", "warnings", "numerics"}
    for row, measured in zip(rows, evaluation.measured, strict=True):
        for name, figure, scored in zip(names, row.figures, measured.scored, strict=True):
            yield {
                "task": row.task,
                "kind": row.kind,
                "candidate": name,
                "metric": row.metric,
                **asdict(figure),
                **scored.result.model_dump(mode="json", include=further),
            }


def _differences(row: TaskRow | AverageRow, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the difference of each candidate but the first from the first, as JSON objects."""
    for name, figure in zip(names, row.differences, strict=True):
        if figure is not None:
            yield {
                "candidate": name,
                "against": names[0],
                **asdict(figure),
                "excludes_zero": figure.excludes_zero,
            }


def _candidate(contender: Contender, numerics: dict[str, int], speed: float | None) -> EvaluatedCandidate:
    return EvaluatedCandidate(
        contender.name,
        " ".join(
            [contender.encoder.path, *(f"{name}={value}" for name, value in contender.overrides.items())]
        ),
        contender.dim,
        contender.space_id,
        f"{contender.kind} to {contender.k} components" if contender.kind else None,
        contender.transform_id,
        numerics,
        bytes=contender.bytes,
        width=contender.k or contender.dim,
        sentences_per_s=speed,
    )


def _row(measured: MeasuredTask) -> TaskRow:
    results = [each.result for each in measured.scored]
    draws = [each.draws.numbers() if each.draws else None for each in measured.scored]
    names = dict.fromkeys(name for result in results for name in result.figures)
    return TaskRow(
        measured.task.name,
        measured.task.kind,
        results[0].metric,
        results[0].count,
        *_figures([result.value for result in results], draws),
        tuple((name, tuple(result.figures.get(name) for result in results)) for name in names),
        *facts_in_words([result.facts for result in results]),
        measured.task.description,
    )


def _averages(evaluation: Evaluation) -> Iterator[AverageRow]:
    """Yield the averages that every candidate has, over the same tasks, with intervals from the resamples."""
    measured = {each.task.name: each for each in evaluation.measured}
    of_candidates = [
        averages({name: each.scored[index].result.score() for name, each in measured.items()})
        for index in range(len(evaluation.candidates))
    ]
    for found in zip(*of_candidates, strict=True):
        names = found[0].members
        members = [measured[name] for name in names]
        draws = [_mean_draws(members, index) for index in range(len(found))]
        measured_only = f"average of the {len(names)} measured: {', '.join(names)}"
        label = found[0].label if found[0].complete else measured_only
        yield AverageRow(
            label,
            names,
            found[0].complete,
            *_figures([each.value if math.isfinite(each.value) else None for each in found], draws),
        )


def _mean_draws(members: Sequence[MeasuredTask], index: int) -> np.ndarray | None:
    """Return (resamples,) the mean of a candidate's values, each on resamples of the task's own rows."""
    drawn = [each.scored[index].draws for each in members]
    return np.mean([draws.numbers() for draws in drawn if draws], axis=0) if all(drawn) else None


def _figures(
    values: Sequence[float | None], draws: Sequence[np.ndarray | None]
) -> tuple[tuple[ScoreEstimate, ...], tuple[ScoreEstimate | None, ...]]:
    """Return the values with their intervals, and their differences from the first one.

    Differences are paired: a resample has the same rows for every candidate.
    """
    first, zeroth = values[0], draws[0]
    differences = [
        _estimate(
            None if value is None or first is None else value - first,
            None if each is None or zeroth is None else each - zeroth,
        )
        for value, each in zip(values[1:], draws[1:], strict=True)
    ]
    return tuple(map(_estimate, values, draws)), (None, *differences)


def _estimate(value: float | None, draws: np.ndarray | None) -> ScoreEstimate:
    found = None if value is None or draws is None else interval(value, draws)
    return ScoreEstimate(value, found.low, found.high) if found else ScoreEstimate(value)


def _warnings(evaluation: Evaluation) -> Iterator[str]:
    """Yield each warning once, with its task, and with its candidates if it is not about all."""
    names = [each.name for each in evaluation.candidates]
    for measured in evaluation.measured:
        task, about = measured.task.name, dict[str, list[str]]()
        for name, scored in zip(names, measured.scored, strict=True):
            for warning in scored.result.warnings:
                about.setdefault(warning, []).append(name)
        for warning, candidates in about.items():
            suffix = "" if len(candidates) == len(names) else f" ({', '.join(candidates)})"
            yield (warning if warning.startswith(task) else f"{task}: {warning}") + suffix
