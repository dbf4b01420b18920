"""The night: read, encode, whiten, index, check, publish. What did not change is not touched, what is refused is not published."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from pipeline.errors import GatesRefused, PublishConflict, RootHeld
from pipeline.flows.encode.encoder_copy import encoder_place
from pipeline.flows.encode.probe import EncodeTexts
from pipeline.flows.encode.rejected import rejected_warnings
from pipeline.flows.index.rules import near_dead_warnings
from pipeline.flows.night.candidate import Candidate
from pipeline.flows.night.outside import outside_texts
from pipeline.flows.night.overview import keep_summary, load_summary, refresh
from pipeline.flows.night.previous import Before, is_damaged, load_before, same_making, unchanged
from pipeline.flows.night.stages import (
    build_candidate,
    check_kind,
    fill_corpus,
    ingest_corpus,
    is_small,
    may_be_small,
    open_releases,
)
from pipeline.flows.workers import metrics
from pipeline.flows.workers.local import OneProcess, arithmetic, standing_by
from pipeline.log import Stages, say
from pipeline.models.folder.folder import open_folder
from pipeline.models.folder.locate import anywhere
from pipeline.settings import Job
from pipeline.store.base import Store
from pipeline.store.lease import lease
from pipeline.store.manifest import ReleaseManifest
from pipeline.store.probe import check_store
from pipeline.store.release import Releases
from pipeline.store.units import Corpus
from pipeline.text.tokens.coverage import token_facts, token_warnings

if TYPE_CHECKING:
    from pipeline.flows.night.report import Compared
    from pipeline.report.night import Status as PageStatus

Status = Literal["published", "unchanged", "overtaken", "held"]


@dataclass(frozen=True)
class Outcome:
    """How a night ended. release: the one that is current now."""

    status: Status
    release: int
    root: str
    report: str
    rows: int
    facts: dict[str, Any]


def nightly(job: Job, stages: Stages, *, verbose: bool = False, verify: bool = False) -> Outcome:
    """Make and publish tonight's release. GatesRefused keeps the candidate for inspection; a night that another one overtook changes nothing.

    Files that the live release lacks are made again, so a damaged release never ends as unchanged.
    verify: compare every file of it with its sha256 too.
    On a held root everything is made and judged, the candidate is kept, and nothing is published.
    DataError for a sequence of commits with a gap.
    """
    releases = open_releases(job)
    outcome = _night(job, releases, stages, verbose, verify)
    refresh(releases)
    return outcome


def _night(job: Job, releases: Releases, stages: Stages, verbose: bool, verify: bool) -> Outcome:
    releases.commits.next_number()  # a damaged sequence shows before any work
    store, before = releases.store, load_before(releases)
    place = encoder_place(open_folder(job.encoder))  # an encoder that cannot be used shows before any work
    fill_corpus(job, stages)
    damaged = is_damaged(store, before, stages, by_content=verify)
    if before.release is not None and not damaged and unchanged(job, before, place):
        return _nothing(before.release, store.uri, "nothing changed")
    check_store(releases.commits.store, creates_once=True)  # without it two nights could both publish
    check_kind(job, before.release)
    outside_texts(job.gates)  # a file that cannot be read shows before any work
    if held := releases.commits.hold():
        then = "tonight's candidate is made and judged, and not published"
        say(f"release {held.release} is held since {held.committed_at}: {then}")
    elif before.release is not None and before.release.release < max(releases.numbers()):
        say(
            f"release {before.release.release} is current by a rollback; this night publishes anew what the corpus and the settings now say"
        )
    with lease(store), standing_by(may_be_small(job, before), job.cluster.patience_s) as process:
        if process is not None and before.release is not None:
            process.warm(EncodeTexts(anywhere(job.encoder), arithmetic(job.encode, alone=True)))
        corpus = ingest_corpus(job, releases, before, stages)
        same_rows = not corpus.anew and not corpus.changes.any
        if (
            before.release is not None
            and same_rows
            and not damaged
            and same_making(job, before.release, place)
        ):
            return _nothing(before.release, store.uri, "files changed, but no row did")
        if process is not None and not is_small(job, store, corpus):
            process.close()
            process = None
        return _made(job, before, corpus, releases, stages, verbose, process)


def _nothing(release: ReleaseManifest, root: str, why: str) -> Outcome:
    say(f"{why} since release {release.release}")
    return _outcome("unchanged", release, root)


def _published(candidate: Candidate, compared: "Compared", releases: Releases, stages: Stages) -> Outcome:
    store = releases.store
    page = _page(candidate, compared, releases, stages)
    if refusals := tuple(gate.sentence for gate in candidate.manifest.gates.values() if not gate.passed):
        folder = _keep(candidate, store, page(None, "refused"))
        gates = {name: gate.model_dump(mode="json") for name, gate in candidate.manifest.gates.items()}
        raise GatesRefused(
            store.uri_of(folder),
            refusals,
            gates,
            tuple(choice.model_dump(mode="json") for choice in candidate.manifest.choices),
        )
    try:
        published = releases.publish(candidate.manifest, lambda number: page(number, "published"))
    except RootHeld as held:
        folder = _keep(candidate, store, page(None, "held"))
        say(f"{held}; the candidate is kept at {store.uri_of(folder)}")
        return _held(_outcome("held", releases.get(held.number), store.uri), held, store.uri_of(folder))
    except PublishConflict as conflict:
        say(str(conflict))
        return _outcome("overtaken", releases.get(conflict.number), store.uri)
    keep_summary(
        store,
        published,
        candidate.built.measured,
        sum(stage.seconds for stage in stages.finished),
        compared.answers,
    )
    metrics.record_release(published.release, published.rows, datetime.now().astimezone().isoformat())
    outcome = _outcome("published", published, store.uri)
    queries = {"asked": len(compared.both), "changed": sum(each.differ for each in compared.both)}
    if queries["asked"]:
        say(
            f"{queries['changed']} of {queries['asked']} fixed queries have other answers than in release {candidate.manifest.parent}"
        )
    return replace(outcome, facts=outcome.facts | {"queries": queries})


def _keep(candidate: Candidate, store: Store, page: str) -> str:
    """The folder in which a candidate that is not published can be looked at."""
    folder = f"candidates/{candidate.manifest.id[:24]}"
    store.write(f"{folder}/manifest.json", candidate.manifest.to_json())
    store.write(f"{folder}/report.html", page.encode())
    return folder


def _held(outcome: Outcome, held: RootHeld, folder: str) -> Outcome:
    """The outcome with the candidate that waits beside the release that is held."""
    facts = outcome.facts | {"candidate": folder, "held_since": held.since, "reason": held.reason}
    return replace(outcome, report=f"{folder}/report.html", facts=facts | {"report": f"{folder}/report.html"})


def _made(
    job: Job,
    before: Before,
    corpus: Corpus,
    releases: Releases,
    stages: Stages,
    verbose: bool,
    process: OneProcess | None,
) -> Outcome:
    """Built, judged and published while Ray is connected, since the agent takes metrics only until then."""
    from pipeline.flows.night.asked import ask, fixed_queries
    from pipeline.flows.night.gates import run_gates
    from pipeline.flows.night.report import Compared
    from pipeline.flows.workers.cluster import connect

    with (
        connect(job.cluster, stages, verbose=verbose, process=process) as cluster,
        metrics.failures_counted(),
    ):
        candidate = build_candidate(job, releases, before, corpus, cluster, stages)
        with stages("gates"):
            last = load_summary(releases.store, before.release.release) if before.release else None
            queries = fixed_queries(releases.store, candidate, last.answers if last else ())
            workers = cluster.index_workers(job.cluster, len(candidate.manifest.units))
            judged = run_gates(job, releases.store, before.release, candidate, workers, queries)
            answers = ask(releases.store, candidate, queries, judged.asked)
        metrics.count_quarantined(candidate.manifest.counts)
        metrics.record_gates(judged.gates)
        manifest = candidate.manifest.model_copy(update={"gates": judged.gates, "canary": judged.canary})
        outcome = _published(
            replace(candidate, manifest=manifest), Compared(before.release, last, answers), releases, stages
        )
        metrics.count_night(outcome.status)
        return outcome


def _page(
    candidate: Candidate, compared: "Compared", releases: Releases, stages: Stages
) -> Callable[[int | None, "PageStatus"], str]:
    """The report's HTML for a release number, None for a candidate that is not published, and what became of it."""
    from pipeline.flows.night.report import summarize
    from pipeline.report.night import render

    created = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
    report = summarize(
        candidate,
        compared,
        releases.store,
        stages,
        created,
        candidate.manifest.settings["release"]["commits_root"],
    )
    return lambda number, status: render(replace(report, number=number, status=status))


def _outcome(status: Status, release: ReleaseManifest, root: str) -> Outcome:
    report = f"{root}/releases/{release.release:08d}/report.html"
    gates = {name: gate.model_dump(mode="json") for name, gate in release.gates.items()}
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
        "gates": gates,
        "decisions": [choice.model_dump(mode="json") for choice in release.choices],
        "tokens": token_facts(release.counts),
        "warnings": [
            *token_warnings(release.counts),
            *rejected_warnings(release.counts, release.counts["total"]),
            *near_dead_warnings(release.choices),
        ],
    }
    return Outcome(status, release.release, root, report, release.rows, facts)
