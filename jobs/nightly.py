"""Make tonight's release: read, encode, whiten, index, check, publish.

manta nightly --config jobs/configs/quickstart.yaml
python -m jobs.nightly --config jobs/configs/quickstart.yaml encode.unit_rows=4096
"""

import shlex
from typing import Annotated, Any

import typer

from jobs.command import Answer, CommandRun, job_command, standalone
from pipeline.log import counted, duration
from pipeline.settings import Job
from pipeline.store.manifest import OUTSIDE_RECALL

Verify = Annotated[
    bool,
    typer.Option(
        "--verify",
        help="First read every file of the current release and compare its sha256; without it only sizes are "
        "compared.",
    ),
]


@job_command
def nightly(run: CommandRun, verify: Verify = False) -> Answer:
    """Make tonight's release: read, encode, whiten, index, check, publish.

    Publishes a new release below release.root when the corpus or the settings changed and every gate is
    passed; a refused candidate is kept for inspection and nothing is published. Stopped at any moment and
    started again, it goes on where it was. Files that the current release lacks are made again. On a root
    that is held the candidate is made and kept, and not published.
    """
    from pipeline.flows.night.nightly import nightly as night

    outcome = night(run.job, run.stages, verbose=run.verbose, verify=verify)
    release = f"release {outcome.release} with {counted(outcome.rows, 'row')}"
    first = {
        "published": f"published release {outcome.release}: {counted(outcome.rows, 'row')}"
        + _changes(outcome.facts["counts"], outcome.rows),
        "unchanged": f"{outcome.facts.get('why', '')}: {release} stays current",
        "held": f"not published: {release} is held; the candidate passed every gate",
        "overtaken": f"another run published release {outcome.release} meanwhile: this one changed nothing",
    }[outcome.status]
    lines = [
        f"{first}, {duration(sum(stage.seconds for stage in run.stages.finished))}",
        *_recall(outcome.facts["gates"]),
        f"  root    {outcome.root}",
        f"  report  {outcome.report}",
        f"  search  {search_command(run.job)}",
    ]
    return Answer(outcome.facts | {"seconds": run.stages.seconds()}, "\n".join(lines))


def _changes(counts: dict[str, int], rows: int) -> str:
    """Describe changed rows, and quarantined rows with their reasons, most frequent first."""
    changes = [
        f"{counts[name]:,} {name}" for name in ("new", "changed", "deleted") if 0 < counts[name] != rows
    ]
    shown = f" ({', '.join(changes)})" if changes else ""
    if not counts["quarantined"]:
        return shown
    prefix = "quarantined_"
    reasons = [
        (-count, name.removeprefix(prefix)) for name, count in counts.items() if name.startswith(prefix)
    ]
    listed = ", ".join(f"{-count:,} {reason}" for count, reason in sorted(reasons))
    return f"{shown}, {counted(counts['quarantined'], 'row')} quarantined ({listed})"


def _recall(gates: dict[str, Any]) -> list[str]:
    """Describe recall@10 on gates.queries beside that of rows; no line if only the latter was measured."""
    if (outside := gates.get(OUTSIDE_RECALL)) is None:
        return []
    rows = gates.get("recall_at_10")
    beside = f", {rows['value']:.4f} of rows of the corpus" if rows else ""
    return [f"  recall  recall@10 is {outside['value']:.4f} of gates.queries{beside}"]


def search_command(job: Job) -> str:
    """Return the shell command that searches the job's release."""
    example = "join two paths" if job.corpus.harvest == "docstrings" else "your query"
    apart = ["--commits-root", job.release.commits_root] if job.release.commits_root else []
    return shlex.join(["manta", "search", job.release.root, example, *apart])


if __name__ == "__main__":
    standalone(nightly)
