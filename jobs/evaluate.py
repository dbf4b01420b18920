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
    from pipeline.evaluate.bootstrap import ScoreEstimate
    from pipeline.report.evaluation_report import AverageRow, EvaluationReport, TaskRow

Geometry = Annotated[
    bool,
    typer.Option(
        "--geometry",
        help="Also measure the space itself on the corpus: anisotropy, spectrum, hubness, layers ...",
    ),
]

MaskWords = Annotated[
    bool,
    typer.Option(
        "--mask-words",
        help="Also show, for candidates with a template, the words that their language model predicts at the "
        "mask, with and without de-noising.",
    ),
]


@job_command
def evaluate(run: CommandRun, geometry: Geometry = False, mask_words: MaskWords = False) -> Answer:
    """Measure candidates on tasks, side by side; without tasks, the published release against its gates.

    With evaluate.tasks (a folder of STS and transfer tasks), evaluate.own (your own data), --geometry
    or --mask-words: scores the candidates, and their differences from the first one, with 95 % intervals.
    evaluate.candidates names encoders, encoders with a fitted transform, and releases; without it the job's
    encoder is the only candidate. Prints a table and writes a page. Every sentence is encoded once for each
    encoder; vectors and scores are kept below evaluations/ of evaluate.root or release.root, and later runs
    reuse them.

    Without any of these: measures the published release against the gates, such as recall against exact
    search over the release's own vectors, size, latency and row counts. Exit code 5 if a gate is not met.
    """
    from pipeline.flows.evaluate.evaluate import compares_candidates
    from pipeline.flows.evaluate.evaluate import evaluate as run_evaluation
    from pipeline.flows.evaluate.report import store_evaluation

    if not compares_candidates(run.job, analyses=geometry or mask_words):
        return _measure_gates(run)
    evaluation = run_evaluation(
        run.job, run.stages, geometry=geometry, mask_words=mask_words, verbose=run.verbose
    )
    stored = store_evaluation(evaluation, datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"))
    page = stored.page
    return Answer(
        {
            "status": "done",
            **stored.facts,
            "report": stored.report,
            "json": stored.json,
            "seconds": run.stages.seconds(),
        },
        "\n\n".join(
            filter(None, [*_tables(page), *_sections(page), _notes(page), f"report  {stored.report}"])
        ),
    )


def _tables(page: "EvaluationReport") -> list[str]:
    """Return one table for each metric, with tasks as rows and candidates as columns."""
    from pipeline.report.evaluation import groups

    first, *others = (candidate.name for candidate in page.candidates)
    header = ("task", "count", first, *(title for name in others for title in (name, "difference")))
    tables = []
    for group in groups(page):
        heading = group.metric
        if page.resamples and group.has_intervals:
            heading += f"; 95 % intervals of {page.resamples:,} resamples"
        rows = [
            (f"{row.task} ({detail})" if detail else row.task, f"{row.count:,}", *_cells(row))
            for row, detail in zip(group.rows, group.metric_details, strict=True)
        ]
        averages = (f"{row.label}: {'; '.join(_cells(row))}" for row in group.averages)
        tables.append("\n".join([heading, table(rows, header), *averages]))
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
    for score, difference in zip(row.scores, row.differences, strict=True):
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


def _notes(page: "EvaluationReport") -> str:
    """Return the lines below the tables: the footnote, missing tasks and warnings."""
    lines = [
        *(f"missing: {task} ({reason})" for task, reason in page.missing),
        *(f"warning: {warning}" for warning in page.warnings),
    ]
    if any(difference and difference.excludes_zero for row in page.rows for difference in row.differences):
        lines.insert(0, f"* the interval of the difference with {page.candidates[0].name} excludes 0")
    return "\n".join(lines)


def _measure_gates(run: CommandRun) -> Answer:
    """Measure the published release against the gates of the job."""
    from pipeline.flows.night.gates.audit import remeasure

    result = remeasure(run.job, run.stages, verbose=run.verbose)
    refused = [name for name, gate in result.gates.items() if not gate.passed]
    facts = {
        "status": "refused" if refused else "done",
        "release": result.release,
        "refused": refused,
        "measured": result.measured.model_dump(mode="json"),
        "gates": {name: gate.model_dump(mode="json") for name, gate in result.gates.items()},
    }
    rows = [
        (name, "passed" if gate.passed else "REFUSED", gate.sentence) for name, gate in result.gates.items()
    ]
    return Answer(
        facts,
        f"release {result.release}\n{table(rows, ('gate', '', ''))}",
        exit_code=5 if refused else 0,
    )


if __name__ == "__main__":
    standalone(evaluate)
