"""Measure candidates on tasks, side by side; without tasks, the published release against its gates.

manta evaluate --config jobs/configs/evaluate.yaml
manta evaluate evaluate.tasks=tasks "evaluate.candidates=[release:current, models/new]"
python -m jobs.evaluate --config jobs/configs/quickstart.yaml
"""

from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from jobs.command import (
    Answer,
    CommandRun,
    Config,
    Json,
    Overrides,
    PrintConfig,
    Verbose,
    run_job,
    standalone,
)
from jobs.layout import table

if TYPE_CHECKING:
    from pipeline.report.evaluation import AverageRow, EvaluationReport, ScoreEstimate, TaskGroup, TaskRow

Geometry = Annotated[
    bool,
    typer.Option(
        "--geometry",
        help="Also measure the space itself on the corpus: anisotropy, spectrum, hubness, layers ...",
    ),
]


def evaluate(
    config: Config = None,
    overrides: Overrides = None,
    geometry: Geometry = False,
    print_config: PrintConfig = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Measure candidates on tasks, side by side; without tasks, the published release against its gates.

    With evaluate.tasks (a folder of STS and transfer tasks), evaluate.own (your own data) or --geometry:
    encoders, encoders with a fitted transform, and releases, named in evaluate.candidates (without any: the
    job's encoder), get figures with 95 % intervals, and differences with the first candidate. Every sentence
    is encoded once for a space, below evaluations/ of evaluate.root or release.root, and later runs take
    vectors and figures over. Prints a table, writes a page.

    Without any of these: measures the published release against the gates. Recall against exact search over
    the release's own vectors, size, latency, row counts, unique ids, finite vectors. Exit code 5 when a gate
    is not met.
    """
    run_job(partial(_evaluate, geometry=geometry), config, overrides, print_config, as_json, verbose)


def _evaluate(run: CommandRun, geometry: bool) -> Answer:
    from pipeline.flows.evaluate.evaluate import evaluate as measure
    from pipeline.flows.evaluate.evaluate import wanted
    from pipeline.flows.evaluate.report import keep

    if not wanted(run.job, geometry=geometry):
        return _against_gates(run)
    kept = keep(
        measure(run.job, run.stages, geometry=geometry, verbose=run.verbose),
        datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
    )
    facts = {
        "status": "done",
        **kept.facts,
        "report": kept.report,
        "json": kept.json,
        "seconds": run.stages.seconds(),
    }
    return Answer(
        facts,
        "\n\n".join(
            [*_tables(kept.page), *_sections(kept.page), *_remarks(kept.page), f"report  {kept.report}"]
        ),
    )


def _tables(page: "EvaluationReport") -> list[str]:
    """One table for each metric: tasks as rows, candidates as columns."""
    from pipeline.report.evaluation import groups

    resampled = f"; 95 % intervals of {page.resamples:,} resamples" if page.resamples else ""
    titles = [
        word
        for place, each in enumerate(page.candidates)
        for word in (each.name, *(["difference"] if place else []))
    ]
    return [
        "\n".join(
            (
                group.metric + (resampled if group.has_intervals else ""),
                _table(group, titles),
                *map(_average, group.averages),
            )
        )
        for group in groups(page)
    ]


def _table(group: "TaskGroup", titles: list[str]) -> str:
    lines = [
        _line(_named(row, rest), f"{row.count:,}", row)
        for row, rest in zip(group.rows, group.rests, strict=True)
    ]
    return table(lines, ("task", "count", *titles))


def _average(average: "AverageRow") -> str:
    return f"{average.label}: {'; '.join(_line('', '', average)[2:])}"


def _named(row: "TaskRow", rest: str) -> str:
    return f"{row.task} ({rest})" if rest else row.task


def _sections(page: "EvaluationReport") -> list[str]:
    """The tables of the page's further parts."""
    return [
        f"{section.heading}\n{table(section.table[1:], section.table[0])}"
        for section in page.sections
        if section.table
    ]


def _line(name: str, count: str, row: "TaskRow | AverageRow") -> tuple[str, ...]:
    cells = [name, count]
    for figure, difference in zip(row.figures, row.differences, strict=True):
        cells.append(_cell(figure))
        if difference is not None:
            cells.append(_cell(difference, signed=True) + (" *" if difference.excludes_zero else ""))
    return tuple(cells)


def _cell(figure: "ScoreEstimate", signed: bool = False) -> str:
    """72.37 [70.12, 74.40]."""
    if figure.value is None:
        return "not defined"
    spread = (
        f" [{figure.low:.2f}, {figure.high:.2f}]"
        if figure.low is not None and figure.high is not None
        else ""
    )
    return f"{figure.value:{'+' if signed else ''}.2f}{spread}"


def _remarks(page: "EvaluationReport") -> list[str]:
    lines = [f"missing: {task} ({reason})" for task, reason in page.missing] + [
        f"warning: {warning}" for warning in page.warnings
    ]
    if any(difference and difference.excludes_zero for row in page.rows for difference in row.differences):
        lines.insert(0, f"* the interval of the difference with {page.candidates[0].name} excludes 0")
    return ["\n".join(lines)] if lines else []


def _against_gates(run: CommandRun) -> Answer:
    from pipeline.flows.night.audit import remeasure

    made = remeasure(run.job, run.stages, verbose=run.verbose)
    refused = [name for name, gate in made.gates.items() if not gate.passed]
    rows = [
        (name, "passed" if gate.passed else "REFUSED", gate.sentence) for name, gate in made.gates.items()
    ]
    facts = {
        "status": "refused" if refused else "done",
        "release": made.release,
        "refused": refused,
        "measured": made.measured.model_dump(mode="json"),
        "gates": {name: gate.model_dump(mode="json") for name, gate in made.gates.items()},
    }
    return Answer(
        facts, f"release {made.release}\n" + table(rows, ("gate", "", "")), exit_code=5 if refused else 0
    )


if __name__ == "__main__":
    standalone(evaluate)
