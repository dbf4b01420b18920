"""The end of a night: its candidate published, refused or held, with the report of it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

from pipeline.errors import GatesRefused, PublishConflict, RootHeld
from pipeline.flows.encode.rejected import rejected_warnings
from pipeline.flows.index.rules import near_dead_warnings
from pipeline.flows.night.candidate import Candidate
from pipeline.flows.night.overview import keep_summary
from pipeline.flows.night.report import Compared, summarize
from pipeline.flows.run import Run
from pipeline.flows.workers import metrics
from pipeline.log import say
from pipeline.report.night import Status as PageStatus
from pipeline.report.night import render
from pipeline.store.base import Store
from pipeline.store.manifest import ReleaseManifest
from pipeline.store.release import Releases
from pipeline.text.tokens.coverage import token_facts, token_warnings

NightStatus = Literal["published", "unchanged", "overtaken", "held"]
Page = Callable[[int | None, PageStatus], str]


@dataclass(frozen=True)
class NightOutcome:
    """The end of a night. release: the one that is current now."""

    status: NightStatus
    release: int
    root: str
    report: str
    rows: int
    facts: dict[str, Any]


def publish_or_refuse(run: Run, releases: Releases, candidate: Candidate, compared: Compared) -> NightOutcome:
    """Publish the candidate if its gates passed and nobody else was faster.

    Raises:
        GatesRefused: with the folder in which the candidate is kept for inspection.
    """
    page = _page(run, candidate, compared)
    if any(not gate.passed for gate in candidate.manifest.gates.values()):
        raise _refusal(run.store, candidate, page)
    try:
        published = releases.publish(candidate.manifest, lambda number: page(number, "published"))
    except RootHeld as held:
        return _held(run.store, releases, candidate, page, held)
    except PublishConflict as conflict:
        say(str(conflict))
        return outcome_of("overtaken", releases.get(conflict.number), run.store.uri)
    return _published(run, published, candidate, compared)


def outcome_of(status: NightStatus, release: ReleaseManifest, root: str) -> NightOutcome:
    """Describe a night that ended with `release` as the current one."""
    report = f"{root}/releases/{release.release:08d}/report.html"
    facts = {
        "status": status,
        "release": release.release,
        "root": root,
        "report": report,
        "rows": release.rows,
        "counts": release.counts,
        "space_id": release.space_id,
        "transform_id": release.transform_id,
        "index": release.index.model_dump(mode="json"),
        "gates": {name: gate.model_dump(mode="json") for name, gate in release.gates.items()},
        "decisions": [choice.model_dump(mode="json") for choice in release.choices],
        "tokens": token_facts(release.counts),
        "warnings": [
            *token_warnings(release.counts),
            *rejected_warnings(release.counts, release.counts["total"]),
            *near_dead_warnings(release.choices),
        ],
    }
    return NightOutcome(status, release.release, root, report, release.rows, facts)


def _published(
    run: Run, published: ReleaseManifest, candidate: Candidate, compared: Compared
) -> NightOutcome:
    seconds = sum(stage.seconds for stage in run.stages.finished)
    keep_summary(run.store, published, candidate.built.measured, seconds, compared.answers)
    metrics.record_release(published.release, published.rows, datetime.now().astimezone().isoformat())
    outcome = outcome_of("published", published, run.store.uri)
    asked, changed = len(compared.both), sum(each.differ for each in compared.both)
    if asked:
        others = f"other answers than in release {candidate.manifest.parent}"
        say(f"{changed} of {asked} fixed queries have {others}")
    return replace(outcome, facts=outcome.facts | {"queries": {"asked": asked, "changed": changed}})


def _refusal(store: Store, candidate: Candidate, page: Page) -> GatesRefused:
    manifest = candidate.manifest
    return GatesRefused(
        store.uri_of(_keep(store, candidate, page(None, "refused"))),
        tuple(gate.sentence for gate in manifest.gates.values() if not gate.passed),
        {name: gate.model_dump(mode="json") for name, gate in manifest.gates.items()},
        tuple(choice.model_dump(mode="json") for choice in manifest.choices),
    )


def _held(store: Store, releases: Releases, candidate: Candidate, page: Page, held: RootHeld) -> NightOutcome:
    """Keep the candidate beside the release that is held."""
    folder = _keep(store, candidate, page(None, "held"))
    say(f"{held}; the candidate is kept at {store.uri_of(folder)}")
    outcome, folder = outcome_of("held", releases.get(held.number), store.uri), store.uri_of(folder)
    report = f"{folder}/report.html"
    facts = {"candidate": folder, "held_since": held.since, "reason": held.reason, "report": report}
    return replace(outcome, report=report, facts=outcome.facts | facts)


def _keep(store: Store, candidate: Candidate, page: str) -> str:
    """Write the candidate's manifest and report into a folder of their own, for inspection.

    Returns its path.
    """
    folder = f"candidates/{candidate.manifest.id[:24]}"
    store.write(f"{folder}/manifest.json", candidate.manifest.to_json())
    store.write(f"{folder}/report.html", page.encode())
    return folder


def _page(run: Run, candidate: Candidate, compared: Compared) -> Page:
    """Return the report's HTML as a function of the release number (None if not published) and the status."""
    created = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
    commits_root = candidate.manifest.settings["release"]["commits_root"]
    report = summarize(candidate, compared, run.store, run.stages, created, commits_root)
    return lambda number, status: render(replace(report, number=number, status=status))
