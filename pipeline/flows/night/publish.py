"""End a night: publish its candidate, keep it because a gate refused it, or let it wait for its approval."""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

from pipeline.config import to_yaml
from pipeline.errors import GatesRefused, PublishConflict, RootHeld
from pipeline.flows.context import FlowContext
from pipeline.flows.events import tell
from pipeline.flows.night.approval import tell_superseded, wait_for_approval, waiting_pages, withdraw
from pipeline.flows.night.candidate import PACKAGES, Candidate
from pipeline.flows.night.gates.corpus_gates import COMPARED_BY, JudgedCorpus
from pipeline.flows.night.previous_release import PreviousRelease
from pipeline.flows.night.release_changes import differing_values
from pipeline.flows.night.report.releases_page import write_summary
from pipeline.flows.night.report.report import (
    ReleaseComparison,
    deleted_rows,
    rejected_rows,
    summarize,
    warnings_of,
)
from pipeline.flows.night.steps import corpus_choice
from pipeline.flows.workers import metrics
from pipeline.log import announce, counted, packages
from pipeline.report.night import NightReport, render
from pipeline.report.refused_corpus import RefusedCorpus, render_refused
from pipeline.settings import Job
from pipeline.store.files.base import Store
from pipeline.store.records.units import (
    BAD_FILES,
    FILTERED,
    UNMATCHED_IDS,
    VALUES_DROPPED,
    Corpus,
    counts_under,
)
from pipeline.store.releases.manifest import Choice, Gate, ReleaseManifest, report_path
from pipeline.store.releases.release import Releases
from pipeline.store.releases.waiting import Waiting
from pipeline.text.tokens.coverage import token_facts

NightStatus = Literal["published", "unchanged", "overtaken", "held", "waiting"]
BY_SETTING = "release.publish=approval"


@dataclass(frozen=True)
class NightOutcome:
    """The end of a night."""

    status: NightStatus
    release: int
    """number of the release that is current now; 0 if none is, because the first candidate waits"""
    root: str
    report: str
    """URI of the report"""
    rows: int
    """live rows of the release"""
    facts: dict[str, Any]
    """the outcome as a JSON object"""
    failures: tuple[str, ...] = ()
    """sentences on the exports and the prune after the night that failed"""


def publish_or_refuse(
    context: FlowContext,
    releases: Releases,
    previous: PreviousRelease,
    candidate: Candidate,
    comparison: ReleaseComparison,
) -> NightOutcome:
    """Publish the candidate, or let it wait if the root is held or it needs an approval.

    Nothing is published if another night has published meanwhile.

    Raises:
        GatesRefused: a gate failed; the error names the folder in which the candidate is kept for inspection.
    """
    store, manifest, report = context.store, candidate.manifest, summarize(context, candidate, comparison)
    if not all(gate.passed for gate in manifest.gates.values()):
        folder = _store_refused(store, candidate, replace(report, status="refused"))
        raise _refused(folder, manifest.gates, manifest.choices)

    def wait(status: Literal["waiting", "held"], reason: str) -> Waiting:
        _store_summary(context, candidate, manifest, comparison)
        pages = waiting_pages(replace(report, status=status))
        return wait_for_approval(context, previous, manifest, pages, reason)

    def check() -> None:
        releases.commits.refuse_erased_since(previous.last_commit)

    try:
        if context.job.release.publish == "approval":
            check()
            releases.check_current(manifest)
            return waiting_outcome(wait("waiting", BY_SETTING), releases, previous)
        published = releases.publish(manifest, lambda number: render(replace(report, number=number)), check)
    except RootHeld as held:
        announce(str(held))
        return waiting_outcome(wait("held", _describe_hold(held)), releases, previous, held)
    except PublishConflict as conflict:
        announce(str(conflict))
        return outcome_of("overtaken", releases.get(conflict.number), store.uri)
    _store_summary(context, candidate, published, comparison)
    _tell_published(context, published, previous)
    metrics.record_release(published.release, published.rows, time.time())
    queries = {"asked": len(comparison.changes), "changed": sum(each.differ for each in comparison.changes)}
    if comparison.changes:
        announce(
            f"{queries['changed']} of {queries['asked']} fixed queries have other answers than in release "
            f"{manifest.parent}"
        )
    return outcome_of("published", published, store.uri, {"queries": queries})


def _store_summary(
    context: FlowContext, candidate: Candidate, manifest: ReleaseManifest, comparison: ReleaseComparison
) -> None:
    seconds = sum(stage.seconds for stage in context.stages.finished)
    write_summary(context.store, manifest, candidate.built.measured, seconds, comparison.answers)


def _tell_published(context: FlowContext, published: ReleaseManifest, previous: PreviousRelease) -> None:
    receiver, store, number = context.job.release.on_event, context.store, published.release
    report = store.uri_of(report_path(number))
    tell(receiver, "published", store.uri, release=number, rows=published.rows, report=report)
    if previous.waiting is not None:
        tell_superseded(receiver, store, previous.waiting.record, f"release {number} has overtaken it")


def refuse_corpus(
    context: FlowContext, previous: PreviousRelease, corpus: Corpus, judged: JudgedCorpus
) -> GatesRefused:
    """Store the report of a corpus that a gate refused. Returns the error to raise."""
    metrics.count_quarantined(corpus.counts)
    metrics.record_gates(judged.gates)
    choice = corpus_choice(corpus, previous)
    filtered = corpus.counts.get(FILTERED, 0)
    metrics.record_changes(corpus.changes.model_dump() | {FILTERED: filtered}, (choice,))
    release = previous.release
    assert release is not None
    report = RefusedCorpus(
        created=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        release=release.release,
        link=f"../../{report_path(release.release)}",
        changes=choice.sentence,
        gates=judged.gates,
        deleted=tuple(
            deleted_rows(context.store, corpus.id, release, show_texts=context.job.release.show_deleted_texts)
        ),
        quarantined=rejected_rows(context.store, corpus),
        settings=to_yaml(context.job),
        packages=packages(*PACKAGES),
    )
    folder = f"candidates/{corpus.id[:24]}"
    context.store.write(f"{folder}/report.html", render_refused(report).encode())
    return _refused(context.store.uri_of(folder), judged.gates, (choice,))


def _refused(folder: str, gates: Mapping[str, Gate], choices: Iterable[Choice]) -> GatesRefused:
    return GatesRefused(
        folder,
        tuple(gate.sentence for gate in gates.values() if not gate.passed),
        {name: gate.model_dump(mode="json") for name, gate in gates.items()},
        tuple(choice.model_dump(mode="json") for choice in choices),
    )


def record_current(releases: Releases, release: ReleaseManifest | None) -> None:
    """Record the metrics of the current release; they remain valid unless the night publishes another one."""
    if release is None or not metrics.is_recorded():
        return
    if (commit := releases.commits.read(release.release)) is not None:
        committed_at = datetime.fromisoformat(commit.committed_at).timestamp()
        metrics.record_release(release.release, release.rows, committed_at)


def unchanged_outcome(
    job: Job, releases: Releases, previous: PreviousRelease, corpus: Corpus | None = None
) -> NightOutcome:
    """Describe a night after which the current release stays current, because no live row changed.

    Args:
        corpus: tonight's corpus; None if its files are the same as the current release's.
    """
    release = previous.release
    assert release is not None
    withdraw(job, releases.store, previous)
    facts: dict[str, Any] = {"why": "nothing changed" if corpus is None else "files changed, but no row did"}
    notes = list(_unmeasured_gates(job, release))
    if corpus is not None:
        metrics.count_quarantined(corpus.counts)
        earlier = previous.corpus.counts if previous.corpus else {}
        facts["counts"] = _with_rejected(release.counts, earlier, corpus.counts)
        if corpus.quarantine and facts["counts"] != release.counts:
            facts["quarantine"] = releases.store.uri_of(corpus.quarantine.path)
            notes.append(_describe_rejected(corpus, earlier, facts["quarantine"]))
    return outcome_of("unchanged", release, releases.store.uri, facts | {"notes": notes})


def _with_rejected(
    counts: Mapping[str, int], before: Mapping[str, int], now: Mapping[str, int]
) -> dict[str, int]:
    """Return a release's counts, updated by rows and files rejected or filtered since its corpus was read."""
    others, parts = (BAD_FILES, VALUES_DROPPED, UNMATCHED_IDS), ("quarantined", FILTERED)
    names = [name for name in {**before, **now} if name.startswith(parts) or name in others]
    rows = {"total": now["rows"] - before.get("rows", now["rows"])}
    changes = rows | {name: now.get(name, 0) - before.get(name, 0) for name in sorted(names)}
    return dict(counts) | {
        name: counts.get(name, 0) + change for name, change in changes.items() if change or name in counts
    }


def _describe_rejected(corpus: Corpus, before: Mapping[str, int], path: str) -> str:
    counts, earlier = (
        counts_under("quarantined_", each) | {"unreadable files": each.get(BAD_FILES, 0)}
        for each in (corpus.counts, before)
    )
    reasons = ", ".join(
        f"{reason} {count:,} (before {earlier.get(reason, 0):,})"
        for reason, count in counts.items()
        if count != earlier.get(reason, 0)
    )
    rows = corpus.counts["quarantined"]
    what = f"{counted(rows, 'row')} of the corpus are quarantined" if rows else "files of the corpus left out"
    return f"{what}: {reasons}; see {path}"


def _unmeasured_gates(job: Job, release: ReleaseManifest) -> Iterator[str]:
    """Yield a sentence on the gates that were set after the release was published."""
    changed = differing_values(release.settings, job.model_dump(mode="json"))
    names = [name for name in changed if name.startswith("gates.") and name not in COMPARED_BY]
    if names:
        yield (
            f"not measured, because there is no new candidate: {', '.join(names)}; `manta evaluate` with "
            f"these settings measures release {release.release}"
        )


def _describe_hold(held: RootHeld) -> str:
    return f"release {held.number} has been held since {held.since}" + f": {held.reason}" * bool(held.reason)


def unchanged_wait_outcome(
    job: Job, releases: Releases, previous: PreviousRelease, record: Waiting
) -> NightOutcome:
    """Describe a night in which nothing changed since the night of the candidate that waits."""
    held = None
    if hold := releases.commits.hold():
        held = RootHeld(int(hold.release or 0), hold.committed_at, releases.store.uri, hold.reason)
    outcome = waiting_outcome(record, releases, previous, held)
    assert previous.waiting is not None
    notes = list(_unmeasured_gates(job, previous.waiting.manifest))
    why = f"nothing changed since candidate {record.candidate}, which waits since {record.at}"
    return replace(outcome, facts=outcome.facts | {"why": why, "notes": notes})


def waiting_outcome(
    record: Waiting,
    releases: Releases,
    previous: PreviousRelease,
    held: RootHeld | None = None,
) -> NightOutcome:
    """Describe a night whose candidate waits. Before the first release, the candidate itself is described."""
    store = releases.store
    folder = store.uri_of(record.folder)
    facts: dict[str, Any] = {"candidate": folder, "report": f"{folder}/report.html"}
    if held is not None:
        facts |= {"held_since": held.since, "reason": held.reason}
    current = releases.get(held.number) if held else previous.release
    if current is None:
        facts |= {"release": None}
    status: NightStatus = "waiting" if held is None else "held"
    return outcome_of(status, current or record.load_manifest(store), store.uri, facts)


def outcome_of(
    status: NightStatus, release: ReleaseManifest, root: str, facts: Mapping[str, Any] | None = None
) -> NightOutcome:
    """Describe a night that ended with `release` as the current one.

    Args:
        facts: entries that are added to `NightOutcome.facts`, or replace some.
    """
    described: dict[str, Any] = {
        "status": status,
        "release": release.release,
        "root": root,
        "report": f"{root}/releases/{release.release:08d}/report.html",
        "rows": release.rows,
        "counts": release.counts,
        "space_id": release.space_id,
        "transform_id": release.transform_id,
        "index": release.index.model_dump(mode="json"),
        "gates": {name: gate.model_dump(mode="json") for name, gate in release.gates.items()},
        "decisions": [choice.model_dump(mode="json") for choice in release.choices],
        "tokens": token_facts(release.counts),
        "warnings": list(warnings_of(release)),
        **(facts or {}),
    }
    return NightOutcome(status, release.release, root, described["report"], release.rows, described)


def _store_refused(store: Store, candidate: Candidate, report: NightReport) -> str:
    """Write the candidate's manifest and report into a folder for inspection. Returns its URI."""
    folder = f"candidates/{candidate.manifest.id[:24]}"
    store.write(f"{folder}/manifest.json", candidate.manifest.to_json())
    store.write(f"{folder}/report.html", render(report).encode())
    return store.uri_of(folder)
