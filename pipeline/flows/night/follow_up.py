"""End a night after its release: export it (release.after), prune (release.keep), and count the night.

Both are done after every night, also after one that publishes nothing: so a failed step is tried again, and a
release that a rollback made current is exported too. If nothing has changed, they change nothing.

A module of its own: `nightly` makes a release, and this uses the current one, whoever made it.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from pipeline.errors import GatesRefused, TransientError
from pipeline.exit_codes import exit_code_of
from pipeline.flows.export.export import export
from pipeline.flows.night.publish import NightOutcome
from pipeline.flows.workers import metrics
from pipeline.log import Stages, announce, counted, size
from pipeline.settings import ExportSettings, Job, ReleaseSettings
from pipeline.store.releases.prune import prune
from pipeline.store.releases.release import Releases
from pipeline.targets.target import check_target, opened_target

Facts = dict[str, Any]


def check_root(settings: ReleaseSettings, releases: Releases) -> None:
    """Check, before any work, the targets of release.after and the commits.

    Raises:
        ConfigError: a target has an unknown kind, or a password in its address.
        DataError: the sequence of commits has a gap.
    """
    for each in settings.after:
        check_target(each.kind, each.target)
    releases.commits.next_number()


def follow_up(
    job: Job, releases: Releases, outcome: NightOutcome, stages: Stages, steps: Sequence[Facts] = ()
) -> NightOutcome:
    """Export the current release and prune, then count the night with its exit code.

    Args:
        steps: earlier steps of the night.

    Returns:
        The outcome with the steps under `after` of its facts, and with a sentence for each failed step.
    """
    steps = [*steps, *(_run_steps(job.release, releases, stages) if outcome.release else ())]
    failures = tuple(f"{step['step']} failed: {step['error']}" for step in steps if "error" in step)
    metrics.count_night(outcome.status, TransientError.exit_code if failures else 0)
    facts = outcome.facts | ({"after": steps} if steps else {})
    return replace(outcome, facts=facts, failures=failures)


@contextlib.contextmanager
def refusal_followed_up(job: Job, releases: Releases, stages: Stages) -> Iterator[None]:
    """Also export and prune if a gate refuses the candidate in the block. The refusal propagates."""
    try:
        yield
    except GatesRefused:
        _run_steps(job.release, releases, stages)
        raise


def _run_steps(settings: ReleaseSettings, releases: Releases, stages: Stages) -> list[Facts]:
    """Run the exports, then the prune, which could remove the release that a target holds."""
    steps = []
    for each in settings.after:
        name = f"export {each.kind} {each.target} {each.name}"
        steps.append(run_step(name, partial(_export, each, releases, stages)))
    if (keep := settings.keep) is not None:
        steps.append(run_step("prune", partial(_prune, releases, keep, stages)))
    return steps


def run_step(name: str, work: Callable[[], Facts]) -> Facts:
    """Run a step and record in the metrics whether it failed. A defect of the program propagates."""
    failed, facts = False, Facts()
    try:
        facts = work()
    except Exception as error:
        if exit_code_of(error) == 70:
            raise
        failed, facts = True, {"error": str(error)}
        announce(f"{name} failed: {error}; published releases stay so, and the next night tries again")
    metrics.FOLLOW_UP_FAILED.record(float(failed), step=name)
    return {"step": name, **facts}


def _export(settings: ExportSettings, releases: Releases, stages: Stages) -> Facts:
    with opened_target(settings.kind, settings.target, settings.name) as target:
        exported = export(releases, None, target, stages.under("export"))
    if exported.status != "unchanged":
        announce(
            f"{target.where} holds release {exported.release}: {counted(exported.written, 'row')} written, "
            f"{exported.deleted:,} deleted"
        )
    return vars(exported)


def _prune(releases: Releases, keep: int, stages: Stages) -> Facts:
    with stages("prune"):
        pruned = prune(releases, keep)
    if pruned.files:
        removed = ", ".join(map(str, pruned.removed)) or "none"
        announce(f"pruned: releases {removed}; {counted(pruned.files, 'file')}, {size(pruned.bytes)} freed")
    return {"removed": pruned.removed, "files": pruned.files, "bytes": pruned.bytes}
