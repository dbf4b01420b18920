"""Make tonight's release: read, encode, whiten, index, check, publish.

manta nightly --config jobs/configs/quickstart.yaml
python -m jobs.nightly --config jobs/configs/quickstart.yaml encode.unit_rows=4096
"""

import contextlib
import functools
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from jobs.command import Answer, CommandRun, job_command, standalone
from pipeline.config import written_value
from pipeline.errors import ConfigError, TransientError
from pipeline.log import counted, duration
from pipeline.settings import Job
from pipeline.store.records.units import BAD_FILES, describe_filtered
from pipeline.store.releases.manifest import (
    FAR_QUERIES,
    QUERY_DRIFT,
    RELEVANCE,
    RELEVANCE_CHANGE,
    RELEVANCE_MRR,
    RELEVANCE_RECALL,
    USER_QUERY_RECALL,
)

Verify = Annotated[
    bool,
    typer.Option(
        "--verify",
        help="First read every file of the current release and compare its sha256. Default: only sizes are "
        "compared.",
    ),
]


def _count_refused(error: ConfigError, file: Path | None, overrides: tuple[str, ...]) -> None:
    """Count a night with refused settings in `release.metrics_file`, if this setting can be read."""
    from pipeline.flows.workers.metrics_file import metrics_written_to

    path = written_value("release.metrics_file", file, overrides)
    is_path = isinstance(path, str) and "://" not in path  # else it is refused, too
    with contextlib.suppress(ConfigError), metrics_written_to(path if is_path else None):
        raise error


@functools.partial(job_command, if_refused=_count_refused)
def nightly(run: CommandRun, verify: Verify = False) -> Answer:
    """Make tonight's release: read, encode, whiten, index, check, publish.

    Publishes a new release below release.root if the corpus or the settings have changed and every gate is
    passed. A candidate that a gate refuses is kept for inspection and not published. While the root is held,
    or with release.publish=approval, a candidate that passed waits for `manta releases promote`. A night that
    was stopped continues where it was when it is started again.
    If files of the current release are missing, they are written again.

    At the beginning, erases rows that were deleted release.erase_after_days ago.
    At the end, exports the current release (release.after) and prunes (release.keep). If one of them fails,
    the release stays published, the exit code is 75, and the next night tries again.
    """
    from pipeline.flows.erase.due import erase_due
    from pipeline.flows.night.nightly import nightly as night

    outcome = night(run.job, run.stages, verbose=run.verbose, verify=verify, before=erase_due)
    rows = _count_texts(outcome.facts["counts"], outcome.rows)
    release = f"release {outcome.release} with {rows}"
    current = f"{release} stays current" if outcome.release else "there is no release yet"
    first = {
        "published": f"published release {outcome.release}: {rows}"
        + _describe_rows(outcome.facts["counts"], outcome.rows),
        "unchanged": f"{outcome.facts.get('why', '')}: {current}",
        "held": f"not published: {release} is held; the candidate passed every gate and waits",
        "waiting": f"not published: the candidate passed every gate and waits for its approval; {current}",
        "overtaken": f"another run published release {outcome.release} meanwhile: this one changed nothing",
    }[outcome.status]
    lines = [
        f"{first}, {duration(sum(stage.seconds for stage in run.stages.finished))}",
        *(_promote_line(run.job, outcome.facts) if "candidate" in outcome.facts else ()),
        *(f"  note    {note}" for note in outcome.facts.get("notes", ())),
        *(f"  failed  {failure}; the next night tries again" for failure in outcome.failures),
        *_query_lines(outcome.facts["gates"]),
        f"  root    {outcome.root}",
        f"  report  {outcome.report}",
        f"  search  {search_command(run.job)}",
    ]
    if not outcome.release:
        lines.pop()  # there is nothing to search
    facts = outcome.facts | {"seconds": run.stages.seconds()}
    return Answer(facts, "\n".join(lines), TransientError.exit_code if outcome.failures else 0)


def _count_texts(counts: dict[str, int], rows: int) -> str:
    """Describe the number of a release's rows; if they are chunks, also the number of documents."""
    if "documents" not in counts:
        return counted(rows, "row")
    return f"{counted(rows, 'chunk')} of {counted(counts['documents'], 'document')}"


def _describe_rows(counts: dict[str, int], rows: int) -> str:
    """Describe how many rows changed, and how many are quarantined for which reasons."""
    changes = [
        f"{counts[name]:,} {name}" for name in ("new", "changed", "deleted") if 0 < counts[name] != rows
    ]
    shown = f" ({', '.join(changes)})" if changes else ""
    if bad := counts.get(BAD_FILES):
        shown = f"{shown}, {counted(bad, 'file')} that could not be read left out"
    if filtered := describe_filtered(counts):
        shown = f"{shown}, {filtered}"
    if not counts["quarantined"]:
        return shown
    prefix = "quarantined_"
    reasons = [
        (-count, name.removeprefix(prefix)) for name, count in counts.items() if name.startswith(prefix)
    ]
    listed = ", ".join(f"{-count:,} {reason}" for count, reason in sorted(reasons))
    return f"{shown}, {counted(counts['quarantined'], 'row')} quarantined ({listed})"


def _query_lines(gates: dict[str, Any]) -> list[str]:
    """Describe the measurements with queries of gates.queries and gates.relevance; [] without them."""
    lines = []
    if user_recall := gates.get(USER_QUERY_RECALL):
        row_recall = gates.get("recall_at_10")
        addition = f", {row_recall['value']:.4f} for rows of the corpus" if row_recall else ""
        found = "not known" if user_recall["value"] is None else f"{user_recall['value']:.4f}"
        lines.append(f"  recall  recall@10 is {found} for gates.queries{addition}")
    compared = [gates[name]["sentence"] for name in (QUERY_DRIFT, FAR_QUERIES) if name in gates]
    lines += [f"  queries {sentence}" for sentence in dict.fromkeys(compared)]
    names = (RELEVANCE, RELEVANCE_RECALL, RELEVANCE_MRR, RELEVANCE_CHANGE)
    relevance = [gates[name] for name in names if name in gates]
    return [*lines, *(f"  scores  {gate['sentence']}" for gate in relevance)]


def _promote_line(job: Job, facts: dict[str, Any]) -> tuple[str, ...]:
    """Return the lines that say since when the candidate waits, if this night did not make it, and how to
    publish it.
    """
    commits = ["--commits-root", job.release.commits_root] if job.release.commits_root else []
    name = facts["candidate"].rpartition("/")[2]
    command = shlex.join(["manta", "releases", "promote", job.release.root, name, "--by", "NAME", *commits])
    return (*([f"  note    {facts['why']}"] if "why" in facts else []), f"  approve {command}")


def search_command(job: Job) -> str:
    """Return the shell command that searches the job's release."""
    example = "join two paths" if job.corpus.harvest == "docstrings" else "your query"
    commits = ["--commits-root", job.release.commits_root] if job.release.commits_root else []
    return shlex.join(["manta", "search", job.release.root, example, *commits])


if __name__ == "__main__":
    standalone(nightly)
