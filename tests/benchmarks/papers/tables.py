"""Print tables of claims: published values beside ours, and a verdict for each claimed ordering."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean

from tests.benchmarks.machine import print_table
from tests.benchmarks.papers.claim import Claim, Row, Table, Training
from tests.benchmarks.papers.measure import Column
from tests.benchmarks.papers.runner import Runner
from tests.benchmarks.papers.verdict import Comparison

REASONS = "reasons.json"
"""sentences that explain orderings which were not shown, by "table: above > below (column)", each with a
measured number"""


def key_of(table: Table, claim: Claim) -> str:
    """Return the name of a claim in the results."""
    return f"{table.key}: {claim.above} > {claim.below} ({claim.column})"


def load_reasons(folder: Path, tables: Sequence[Table]) -> dict[str, str]:
    """Load the reasons that are stored beside the results.

    Raises:
        ValueError: a reason for a claim that does not exist.
    """
    file = folder / REASONS
    reasons: dict[str, str] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    known = {key_of(table, claim) for table in tables for claim in table.claims}
    if unknown := reasons.keys() - known:
        raise ValueError(f"{file}: {min(unknown)!r} is no claim; known: {', '.join(sorted(known))}")
    return reasons


def print_results(runner: Runner, table: Table, reasons: Mapping[str, str]) -> list[str]:
    """Print the rows and the claims of a table; return the verdicts."""
    columns = (name for column in table.columns for name in (f"{column}, published", "ours"))
    header = ("row", *columns, *(["loss before, after"] if table.cost else []))
    rows = [(row.name, *_cells(runner, table, row)) for row in table.rows]
    print_table(f"### {table.key}\n\n{table.paper}; {table.source}", rows, header)
    compared = [(claim, runner.compare(table, claim)) for claim in table.claims]
    lines = [
        (
            claim.column,
            f"{claim.above} > {claim.below}",
            found.verdict,
            _difference(found),
            reasons.get(key_of(table, claim), ""),
        )
        for claim, found in compared
    ]
    print_table("Claims", lines, ("column", "claim", "verdict", "difference", "measured reason"))
    return [found.verdict for _, found in compared]


def _cells(runner: Runner, table: Table, row: Row) -> Iterator[str]:
    """Yield the published value and ours, for each column, then the losses of the training."""
    skipped = runner.skipped.get(f"{table.key}: {row.name}")
    for number, column in enumerate(table.columns):
        published = row.published[number] if number < len(row.published) else None
        yield "" if published is None else f"{published:.2f}"
        digits = 3 if Column.of(column).metric else 2  # a metric is of the size of a cosine
        values = [] if skipped else [runner.value(row, column, seed) for seed in runner.seeds]
        yield "not run" if skipped else _range(values, digits)
    if table.cost:
        yield "" if skipped or row.training is None else _losses(runner, row.training)


def _losses(runner: Runner, training: Training) -> str:
    """Return the mean loss over the seeds, of the same rows before the first step and after the last."""
    measured = [runner.measured(training, seed) for seed in runner.seeds]
    if any("end_loss" not in each for each in measured):
        return ""
    start, end = (mean(each[name] for each in measured) for name in ("start_loss", "end_loss"))
    return f"{start:.3f}, {end:.3f}"


def _range(values: Sequence[float], digits: int) -> str:
    """Return the mean with the range, if the values differ."""
    average, low, high = (f"{each:.{digits}f}" for each in (mean(values), min(values), max(values)))
    return average if max(values) == min(values) else f"{average} ({low} to {high})"


def _difference(found: Comparison) -> str:
    """Return the difference of the means, with the interval of the bootstrap of each seed."""
    if found.verdict == "not run":
        return ""
    intervals = (f"[{low:+.2f}, {high:+.2f}]" for low, high in found.intervals)
    return " ".join([f"{found.difference:+.2f}", *intervals])
