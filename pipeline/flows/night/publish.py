"""End a night: publish its candidate, or keep it unpublished if it is refused or the root is held."""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

from pipeline.config import to_yaml
from pipeline.errors import GatesRefused, PublishConflict, RootHeld
from pipeline.flows.context import FlowContext
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
from pipeline.store.releases.unpublished import record_night
from pipeline.text.tokens.coverage import token_facts

NightStatus = Literal["published", "unchanged", "overtaken", "held"]


@dataclass(frozen=True)
class NightOutcome:
    """The end of a night."""

    status: NightStatus
    release: int
    """number of the release that is current now"""
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
    context: FlowContext, releases: Releases, candidate: Candidate, comparison: ReleaseComparison
) -> NightOutcome:
    """Publish the candidate, unless a gate failed, the root is held or another night has published meanwhile.

    Raises:
        GatesRefused: a gate failed; the error names the folder in which the candidate is kept for inspection.
    """
    store, manifest, report = context.store, candidate.manifest, summarize(context, candidate, comparison)
    if not all(gate.passed for gate in manifest.gates.values()):
        folder = _store_candidate(store, candidate, replace(report, status="refused"))
        raise _refused(folder, manifest.gates, manifest.choices)
    try:
        published = releases.publish(manifest, lambda number: render(replace(report, number=number)))
    except RootHeld as held:
        folder = _store_candidate(store, candidate, replace(report, status="held"))
        return _held_outcome(held, releases, folder)
    except PublishConflict as conflict:
        announce(str(conflict))
        return outcome_of("overtaken", releases.get(conflict.number), store.uri)
    write_summary(
        store,
        published,
        candidate.built.measured,
        sum(stage.seconds for stage in context.stages.finished),
        comparison.answers,
    )
    metrics.record_release(published.release, published.rows, time.time())
    queries = {"asked": len(comparison.changes), "changed": sum(each.differ for each in comparison.changes)}
    if comparison.changes:
        announce(
            f"{queries['changed']} of {queries['asked']} fixed queries have other answers than in release "
            f"{manifest.parent}"
        )
    return outcome_of("published", published, store.uri, {"queries": queries})


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
        deleted=tuple(deleted_rows(context.store, corpus.id, release)),
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


def _held_outcome(held: RootHeld, releases: Releases, folder: str) -> NightOutcome:
    """Announce that the candidate is kept in `folder` because the root is held, and describe the night."""
    announce(f"{held}; the candidate is kept at {folder}")
    why = f"release {held.number} has been held since {held.since}" + f": {held.reason}" * bool(held.reason)
    candidate = folder.removeprefix(f"{releases.store.uri}/")
    record_night(releases.store, "waiting", why, candidate=candidate)
    facts = {
        "held_since": held.since,
        "reason": held.reason,
        "candidate": folder,
        "report": f"{folder}/report.html",
    }
    return outcome_of("held", releases.get(held.number), releases.store.uri, facts)


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


def _store_candidate(store: Store, candidate: Candidate, report: NightReport) -> str:
    """Write the candidate's manifest and report into a folder for inspection. Returns its URI."""
    folder = f"candidates/{candidate.manifest.id[:24]}"
    store.write(f"{folder}/manifest.json", candidate.manifest.to_json())
    store.write(f"{folder}/report.html", render(report).encode())
    return store.uri_of(folder)
