"""Make tonight's release: read, encode, whiten, index, check, publish.

manta nightly --config jobs/configs/quickstart.yaml
python -m jobs.nightly --config jobs/configs/quickstart.yaml encode.unit_rows=4096
"""

import shlex
from typing import Annotated, Any

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
from pipeline.log import duration
from pipeline.settings import Job
from pipeline.store.manifest import OUTSIDE_RECALL

_VERIFY = (
    "First read every file of the current release and compare its sha256; without it only sizes are compared."
)
Verify = Annotated[bool, typer.Option("--verify", help=_VERIFY)]


def nightly(
    config: Config = None,
    overrides: Overrides = None,
    print_config: PrintConfig = False,
    verify: Verify = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Make tonight's release: read, encode, whiten, index, check, publish.

    Publishes a new release below release.root when the corpus or the settings changed and every gate is
    passed; a refused candidate is kept for inspection and nothing is published. Stopped at any moment and
    started again, it goes on where it was. Files that the current release lacks are made again. On a root
    that is held the candidate is made and kept, and not published.
    """
    run_job(lambda run: _nightly(run, verify), config, overrides, print_config, as_json, verbose)


def _nightly(run: CommandRun, verify: bool) -> Answer:
    from pipeline.flows.night.nightly import nightly as night

    outcome = night(run.job, run.stages, verbose=run.verbose, verify=verify)
    counts = outcome.facts["counts"]
    changed = ", ".join(
        f"{counts[name]:,} {name}"
        for name in ("new", "changed", "deleted")
        if counts[name] and counts[name] != outcome.rows
    )
    first = {
        "published": f"published release {outcome.release}: {outcome.rows:,} rows"
        + (f" ({changed})" if changed else "")
        + _quarantined(counts),
        "unchanged": f"{outcome.facts.get('why', '')}: release {outcome.release} with {outcome.rows:,} rows "
        "stays current",
        "held": (
            f"not published: release {outcome.release} with {outcome.rows:,} rows is held; the candidate "
            "passed every gate"
        ),
        "overtaken": f"another run published release {outcome.release} meanwhile: this one changed nothing",
    }[outcome.status]
    seconds = sum(stage.seconds for stage in run.stages.finished)
    facts = outcome.facts | {"seconds": run.stages.seconds()}
    lines = [
        f"{first}, {duration(seconds)}",
        *_recall(facts["gates"]),
        f"  root    {outcome.root}",
        f"  report  {outcome.report}",
    ]
    return Answer(facts, "\n".join([*lines, f"  search  {search_command(run.job)}"]))


def _quarantined(counts: dict[str, int]) -> str:
    """Quarantined rows with their reasons, most frequent first; nothing if there are none."""
    if not counts["quarantined"]:
        return ""
    prefix = "quarantined_"
    reasons = {name.removeprefix(prefix): count for name, count in counts.items() if name.startswith(prefix)}
    ordered = sorted(reasons.items(), key=lambda each: (-each[1], each[0]))
    listed = ", ".join(f"{count:,} {reason}" for reason, count in ordered)
    return f", {counts['quarantined']:,} rows quarantined ({listed})"


def _recall(gates: dict[str, Any]) -> list[str]:
    """Recall@10 of the texts that people ask beside that of rows; nothing where only the latter was measured."""
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
