"""Estimate what a night would do, without running it.

manta plan --config jobs/configs/quickstart.yaml
python -m jobs.plan --config jobs/configs/quickstart.yaml encode.unit_rows=4096
manta plan --config night.yaml --rows 1e9 cluster.nodes.count=10 cluster.nodes.cpus=16
"""

from typing import TYPE_CHECKING, Annotated

import typer

from jobs.command import Answer, CommandRun, job_command, standalone
from pipeline.errors import ConfigError
from pipeline.log import counted, duration, size

if TYPE_CHECKING:
    from pipeline.flows.night.planning.night_plan import Assumptions, NightPlan

_ROWS_HELP = "Plan for a corpus of this number of rows, such as 1e9."
_SPEED_HELP = "Rows that one worker encodes in a second. Default: measured on this machine."
_MAX_ROWS = 10**12
_Rows = Annotated[str | None, typer.Option("--rows", metavar="NUMBER", help=_ROWS_HELP)]
_Speed = Annotated[float | None, typer.Option("--rows-per-s", metavar="NUMBER", help=_SPEED_HELP)]


@job_command
def plan(run: CommandRun, rows: _Rows = None, rows_per_s: _Speed = None) -> Answer:
    """Estimate what a night would do, without running it.

    Lists and samples the corpus, and measures the speed of the encoder for five seconds on this machine. Then
    prints rows, tokens, units, the kind, size and recall of the index, memory, and the time of every stage of
    a first night: on the nodes that cluster.nodes names, else on those of the running cluster, else on this
    machine. If there is a release, also prints the number of files that have changed since, and the recall of
    its index. Writes nothing.
    """
    from pipeline.evaluate.judgements import read_relevance
    from pipeline.flows.night.planning.night_plan import Assumptions
    from pipeline.flows.night.planning.night_plan import plan as plan_night

    if rows_per_s is not None and not 0 < rows_per_s < _MAX_ROWS:
        raise ConfigError("--rows-per-s", "a number above 0", f"{rows_per_s:g}", "correct it")
    assumed = Assumptions(None if rows is None else _row_count(rows), rows_per_s)
    night = plan_night(run.job, run.stages, assumed=assumed, verbose=run.verbose)
    lines = [*_size_lines(night, assumed, run.job.encode.unit_rows), *_cost_lines(night)]
    if night.release is not None:
        tonight = (
            f"{night.changed_files} of {counted(night.files, 'file')} changed since release {night.release}: "
            f"at most {night.tonight_rows:,} rows are encoded"
        )
        lines.insert(1, ("tonight", tonight))
    if night.recall_at_10 is not None:
        lines.append(("recall", f"recall@10 was {night.recall_at_10:.4f} in release {night.release}"))
    if run.job.gates.relevance.queries is not None:
        counts = read_relevance(run.job.gates.relevance).count
        lines.append(("judged", f"{counts}, for gates.relevance; their search is not in the cost"))
    return Answer(night.facts(), "\n".join(f"{name:<8} {value}" for name, value in lines))


def _size_lines(night: "NightPlan", assumed: "Assumptions", unit_rows: int) -> list[tuple[str, str]]:
    """Return lines with rows, units, encoding, index and memory."""
    index = night.index
    unusable = f", {night.unusable_share:.1%} without a vector (quarantined)" if night.unusable_share else ""
    source = "as given" if assumed.rows else f"in {counted(night.files, 'file')}"
    estimated = "" if night.exact else " (estimated from the sample)"
    speed = "as given" if assumed.rows_per_s else "on this machine"
    return [
        ("rows", f"{night.rows:,} {source}{estimated}"),
        (
            "tokens",
            f"{night.tokens_per_row:.1f} a row in {counted(night.sampled, 'sampled text')}, "
            f"{night.truncated_share:.1%} of them truncated{unusable}",
        ),
        (
            "units",
            f"{night.units:,} of up to {counted(unit_rows, 'row')}, on {counted(night.workers, 'worker')}",
        ),
        (
            "encode",
            f"about {duration(night.encode_s)}: one worker does {night.rows_per_s:,.0f} rows/s {speed}",
        ),
        ("vectors", size(night.vector_bytes)),
        ("index", f"{index.kind} ({index.factory}), {size(index.file_bytes)}: {index.why}"),
        (
            "memory",
            f"about {size(night.worker_bytes)} a worker, {size(night.task_bytes)} a task of the index, "
            f"{size(index.memory_bytes)} a searcher",
        ),
    ]


def _cost_lines(night: "NightPlan") -> list[tuple[str, str]]:
    """Return lines with the predicted cost of the night, and of its stages."""
    cost, kinds = night.cost, dict.fromkeys(night.nodes)
    each = ", ".join(
        f"{counted(float(node.cpus), 'CPU')} and {counted(float(node.gpus), 'GPU')}" for node in kinds
    )
    where = f"{counted(len(night.nodes), 'node')} of {each}"
    lines = [
        ("cost", f"about {duration(3_600 * cost.hours)}, {cost.node_hours:.3g} node-hours, on {where}"),
        ("", f"{'stage':8}{'time':>14}{'CPU time':>14}{'GPU time':>14}{'one process':>14}{'moved':>11}"),
    ]
    for stage in cost.stages:
        times = (stage.wall_s, stage.cpu_s, stage.gpu_s, stage.alone_s)
        cells = "".join(f"{duration(each) if each else '-':>14}" for each in times)
        lines.append(("", f"{stage.stage:8}{cells}{size(stage.moved_bytes):>11}"))
    return lines


def _row_count(given: str) -> int:
    """Return the number of rows of an option such as 1000000, 1_000_000 or 1e6."""
    try:
        count = float(given)
    except ValueError:
        count = 0.0
    if not 1 <= count <= _MAX_ROWS or count != int(count):
        raise ConfigError(
            "--rows",
            f"a whole number from 1 to {_MAX_ROWS:.0e}, such as 1000000 or 1e6",
            repr(given),
            "correct it",
        )
    return int(count)


if __name__ == "__main__":
    standalone(plan)
