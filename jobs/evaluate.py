"""Measure candidates on tasks, side by side; without tasks, the published release against its gates.

manta evaluate --config jobs/configs/evaluate.yaml
manta evaluate evaluate.tasks=tasks "evaluate.candidates=[release:current, models/new]"
python -m jobs.evaluate --config jobs/configs/quickstart.yaml
"""

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from jobs.command import Answer, CommandRun, job_command, standalone
from jobs.layout import table

if TYPE_CHECKING:
    from pipeline.report.evaluation import AverageRow, EvaluationReport, ScoreEstimate, TaskRow

Geometry = Annotated[
    bool,
    typer.Option(
        "--geometry",
        help="Also measure the space itself on the corpus: anisotropy, spectrum, hubness, layers ...",
    ),
]


@job_command
def evaluate(run: CommandRun, geometry: Geometry = False) -> Answer:
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
    from pipeline.flows.evaluate.evaluate import evaluate as measure
    from pipeline.flows.evaluate.evaluate import wanted
    from pipeline.flows.evaluate.report import keep

    if not wanted(run.job, geometry=geometry):
        return _against_gates(run)
    kept = keep(
        measure(run.job, run.stages, geometry=geometry, verbose=run.verbose),
        datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
    )
    page, files = kept.page, {"report": kept.report, "json": kept.json}
    return Answer(
        {"status": "done", **kept.facts, **files, "seconds": run.stages.seconds()},
        "\n\n".join([*_tables(page), *_sections(page), *_remarks(page), f"report  {kept.report}"]),
    )


def _tables(page: "EvaluationReport") -> list[str]:
    """Return one table for each metric, with tasks as rows and candidates as columns."""
    from pipeline.report.evaluation import groups

    first, *others = (candidate.name for candidate in page.candidates)
    header = ("task", "count", first, *(title for name in others for title in (name, "difference")))
    tables = []
    for group in groups(page):
        lines = [group.metric]
        if page.resamples and group.has_intervals:
            lines[0] += f"; 95 % intervals of {page.resamples:,} resamples"
        rows = [
            (f"{row.task} ({rest})" if rest else row.task, f"{row.count:,}", *_cells(row))
            for row, rest in zip(group.rows, group.rests, strict=True)
        ]
        lines += [table(rows, header), *(f"{row.label}: {'; '.join(_cells(row))}" for row in group.averages)]
        tables.append("\n".join(lines))
    return tables


def _sections(page: "EvaluationReport") -> list[str]:
    """Return the tables of the page's other sections."""
    return [
        f"{section.heading}\n{table(section.table[1:], section.table[0])}"
        for section in page.sections
        if section.table
    ]


def _cells(row: "TaskRow | AverageRow") -> Iterator[str]:
    """Yield the score of each candidate, and its difference with the first candidate."""
    for score, difference in zip(row.figures, row.differences, strict=True):
        yield _cell(score)
        if difference is not None:
            yield _cell(difference, "+") + (" *" if difference.excludes_zero else "")


def _cell(score: "ScoreEstimate", sign: str = "") -> str:
    """Return a score with its interval: 72.37 [70.12, 74.40]."""
    if score.value is None:
        return "not defined"
    shown = f"{score.value:{sign}.2f}"
    if score.low is None or score.high is None:
        return shown
    return f"{shown} [{score.low:.2f}, {score.high:.2f}]"


def _remarks(page: "EvaluationReport") -> list[str]:
    lines = []
    if any(difference and difference.excludes_zero for row in page.rows for difference in row.differences):
        lines.append(f"* the interval of the difference with {page.candidates[0].name} excludes 0")
    lines += [f"missing: {task} ({reason})" for task, reason in page.missing]
    lines += [f"warning: {warning}" for warning in page.warnings]
    return ["\n".join(lines)] if lines else []


def _against_gates(run: CommandRun) -> Answer:
    from pipeline.flows.night.audit import remeasure

    made = remeasure(run.job, run.stages, verbose=run.verbose)
    refused = [name for name, gate in made.gates.items() if not gate.passed]
    facts = {
        "status": "refused" if refused else "done",
        "release": made.release,
        "refused": refused,
        "measured": made.measured.model_dump(mode="json"),
        "gates": {name: gate.model_dump(mode="json") for name, gate in made.gates.items()},
    }
    rows = [
        (name, "passed" if gate.passed else "REFUSED", gate.sentence) for name, gate in made.gates.items()
    ]
    text = f"release {made.release}\n{table(rows, ('gate', '', ''))}"
    return Answer(facts, text, exit_code=5 if refused else 0)


if __name__ == "__main__":
    standalone(evaluate)
