"""An evaluation in words and numbers: the page, the JSON object, and where both are kept."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from pipeline.config import canonical
from pipeline.evaluate.bootstrap import interval
from pipeline.flows.evaluate.candidates import Contender
from pipeline.flows.evaluate.evaluate import Evaluation, MeasuredTask
from pipeline.report.evaluation import (
    AverageRow,
    EvaluatedCandidate,
    EvaluationReport,
    TaskRow,
    facts_in_words,
    render,
)
from pipeline.report.evaluation_format import ScoreEstimate
from pipeline.store.store import open_store


@dataclass(frozen=True)
class Kept:
    """An evaluation as it is told. report, json: where page and object are kept."""

    page: EvaluationReport
    facts: dict[str, Any]
    report: str
    json: str


def keep(evaluation: Evaluation, created: str) -> Kept:
    """Store the evaluation as a page and as a JSON object below its id, each whole or not at all."""
    store = open_store(evaluation.root)
    folder, page, facts = evaluation.id, page_of(evaluation, created), facts_of(evaluation)
    store.write(f"{folder}/evaluation.json", canonical(facts) + b"\n")
    store.write(f"{folder}/report.html", render(page).encode())
    return Kept(page, facts, store.uri_of(f"{folder}/report.html"), store.uri_of(f"{folder}/evaluation.json"))


def page_of(evaluation: Evaluation, created: str) -> EvaluationReport:
    """What the page shows."""
    return EvaluationReport(
        root=evaluation.root,
        id=evaluation.id,
        created=created,
        candidates=tuple(map(_candidate, evaluation.candidates, evaluation.numerics, _speeds(evaluation))),
        disagreements=evaluation.disagreements,
        rows=tuple(map(_row, evaluation.measured)),
        averages=tuple(_averages(evaluation)),
        missing=tuple((each.name, each.reason) for each in evaluation.missing),
        warnings=tuple(_warnings(evaluation)),
        resamples=evaluation.resamples,
        sections=evaluation.sections,
        settings=evaluation.settings,
        packages=evaluation.packages,
    )


def facts_of(evaluation: Evaluation) -> dict[str, Any]:
    """The JSON object: values of what the page shows, and every further figure. Not-a-number is null."""
    names = [each.name for each in evaluation.candidates]
    rows = [(each, _row(each)) for each in evaluation.measured]
    averages = list(_averages(evaluation))
    return {
        "id": evaluation.id,
        "resamples": evaluation.resamples,
        "candidates": [
            each.facts() | {"numerics": numerics, "sentences_per_s": speed}
            for each, numerics, speed in zip(
                evaluation.candidates, evaluation.numerics, _speeds(evaluation), strict=True
            )
        ],
        "results": [
            _result(each, row, place, name) for each, row in rows for place, name in enumerate(names)
        ],
        "differences": [
            {
                "task": row.task,
                "candidate": names[place],
                "against": names[0],
                **_difference(row.differences[place]),
            }
            for _, row in rows
            for place in range(1, len(names))
        ],
        "averages": [
            {
                "label": average.label,
                "complete": average.complete,
                "tasks": list(average.members),
                "candidate": name,
                **_interval(average.figures[place]),
            }
            for average in averages
            for place, name in enumerate(names)
        ],
        "average_differences": [
            {
                "label": average.label,
                "candidate": names[place],
                "against": names[0],
                **_difference(average.differences[place]),
            }
            for average in averages
            for place in range(1, len(names))
        ],
        "missing": [{"task": each.name, "reason": each.reason} for each in evaluation.missing],
        "disagreements": [asdict(each) for each in evaluation.disagreements],
        "warnings": list(_warnings(evaluation)),
        "geometry": evaluation.geometry,
        "sentences_encoded": evaluation.encoded,
        "settings": evaluation.settings,
        "packages": evaluation.packages,
    }


def _result(measured: MeasuredTask, row: TaskRow, place: int, candidate: str) -> dict[str, Any]:
    result, figure = measured.scored[place].result, row.figures[place]
    return {
        "task": row.task,
        "kind": row.kind,
        "candidate": candidate,
        "metric": row.metric,
        **_interval(figure),
        "count": result.count,
        "figures": result.figures,
        "facts": result.facts,
        "warnings": list(result.warnings),
        "numerics": result.numerics,
    }


def _interval(figure: ScoreEstimate) -> dict[str, Any]:
    return {"value": figure.value, "low": figure.low, "high": figure.high}


def _difference(figure: ScoreEstimate | None) -> dict[str, Any]:
    assert figure is not None
    return _interval(figure) | {"excludes_zero": figure.excludes_zero}


def _speeds(evaluation: Evaluation) -> tuple[float | None, ...]:
    return evaluation.speeds or (None,) * len(evaluation.candidates)


def _candidate(contender: Contender, numerics: dict[str, int], speed: float | None) -> EvaluatedCandidate:
    transform = f"{contender.kind} to {contender.k} components" if contender.kind else None
    encoder = " ".join(
        [contender.encoder.path, *(f"{name}={value}" for name, value in contender.overrides.items())]
    )
    return EvaluatedCandidate(
        contender.name,
        encoder,
        contender.dim,
        contender.space_id,
        transform,
        contender.transform_id,
        numerics,
        bytes=contender.bytes,
        width=contender.k or contender.dim,
        sentences_per_s=speed,
    )


def _row(measured: MeasuredTask) -> TaskRow:
    results = [each.result for each in measured.scored]
    first, values, draws = (
        results[0],
        [result.value for result in results],
        [each.draws.numbers() if each.draws else None for each in measured.scored],
    )
    parts = {
        name: tuple(result.figures.get(name) for result in results)
        for result in results
        for name in result.figures
    }
    facts, own = facts_in_words([result.facts for result in results])
    return TaskRow(
        measured.task.name,
        measured.task.kind,
        first.metric,
        first.count,
        *_figures(values, draws),
        tuple(parts.items()),
        facts,
        own,
        measured.task.description,
    )


def _averages(evaluation: Evaluation) -> Iterator[AverageRow]:
    """Those that every candidate has, over the same tasks, with the intervals that the tasks' resamples give."""
    measured = {each.task.name: each for each in evaluation.measured}
    for each in zip(*evaluation.averages, strict=True):
        members = [measured[name] for name in each[0].members]
        draws = [_mean_draws(members, place) for place in range(len(evaluation.candidates))]
        figures, differences = _figures([_finite(average.value) for average in each], draws)
        label = (
            each[0].label
            if each[0].complete
            else f"average of the {len(members)} measured: {', '.join(each[0].members)}"
        )
        yield AverageRow(label, each[0].members, each[0].complete, figures, differences)


def _mean_draws(members: Sequence[MeasuredTask], place: int) -> np.ndarray | None:
    """(resamples,): the mean of the tasks' values, each on resamples of its own rows."""
    drawn = [each.scored[place].draws for each in members]
    return np.mean([draws.numbers() for draws in drawn if draws], axis=0) if all(drawn) else None


def _figures(
    values: Sequence[float | None], draws: Sequence[np.ndarray | None]
) -> tuple[tuple[ScoreEstimate, ...], tuple[ScoreEstimate | None, ...]]:
    """The values with their intervals, and their differences with the first one, which are paired: a resample
    is the same rows for all.
    """
    figures = tuple(_figure(value, each) for value, each in zip(values, draws, strict=True))
    first, zeroth = values[0], draws[0]
    differences: list[ScoreEstimate | None] = [None]
    for value, each in zip(values[1:], draws[1:], strict=True):
        gap = None if value is None or first is None else value - first
        differences.append(_figure(gap, None if each is None or zeroth is None else each - zeroth))
    return figures, tuple(differences)


def _figure(value: float | None, draws: np.ndarray | None) -> ScoreEstimate:
    found = None if value is None or draws is None else interval(value, draws)
    return ScoreEstimate(value, found.low, found.high) if found else ScoreEstimate(value)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _warnings(evaluation: Evaluation) -> Iterator[str]:
    """Each once, with its task, and with the candidates that it is about where it is not about all."""
    names = [each.name for each in evaluation.candidates]
    for measured in evaluation.measured:
        said: dict[str, list[str]] = {}
        for name, scored in zip(names, measured.scored, strict=True):
            for warning in scored.result.warnings:
                said.setdefault(warning, []).append(name)
        for warning, about in said.items():
            who = "" if len(about) == len(names) else f" ({', '.join(about)})"
            yield (
                warning if warning.startswith(measured.task.name) else f"{measured.task.name}: {warning}"
            ) + who
