"""The night: read, encode, transform, index, judge, publish. Unchanged parts are kept."""

from dataclasses import replace

from pipeline.flows.corpus import fill_corpus, open_releases
from pipeline.flows.encode.encoder_copy import encoder_place
from pipeline.flows.encode.probe import EncodeTexts
from pipeline.flows.night.asked import ask, fixed_queries
from pipeline.flows.night.candidate import Candidate
from pipeline.flows.night.gates import run_gates
from pipeline.flows.night.outcome import NightOutcome, outcome_of, publish_or_refuse
from pipeline.flows.night.outside import outside_texts
from pipeline.flows.night.overview import load_summary, refresh
from pipeline.flows.night.previous import (
    PreviousRelease,
    is_damaged,
    load_previous,
    same_making,
    unchanged,
)
from pipeline.flows.night.report import Compared
from pipeline.flows.night.stages import (
    build_candidate,
    check_kind,
    ingest_corpus,
    is_small,
    may_be_small,
)
from pipeline.flows.run import Run
from pipeline.flows.workers import metrics
from pipeline.flows.workers.cluster import connect, local_workers
from pipeline.flows.workers.local import LocalWorkers
from pipeline.log import Stages, say
from pipeline.models.folder.folder import open_folder
from pipeline.models.folder.locate import anywhere
from pipeline.settings import Job
from pipeline.store.base import Store
from pipeline.store.lease import lease
from pipeline.store.probe import check_store
from pipeline.store.release import Releases
from pipeline.store.units import Corpus


def nightly(job: Job, stages: Stages, *, verbose: bool = False, verify: bool = False) -> NightOutcome:
    """Make and publish tonight's release.

    A night that another one overtook changes nothing. Files that the live release lacks are made again, so a
    damaged release never ends as unchanged. On a held root the candidate is made, judged and kept, and not
    published.

    Args:
        verify: compare every file of the live release with its sha256 too.

    Raises:
        GatesRefused: a gate did not pass; the candidate is kept for inspection. DataError: the sequence of
        commits has a gap, or a file of the live release was changed.
    """
    releases = open_releases(job)
    outcome = _night(job, releases, stages, verbose=verbose, verify=verify)
    refresh(releases)
    return outcome


def _night(job: Job, releases: Releases, stages: Stages, *, verbose: bool, verify: bool) -> NightOutcome:
    releases.commits.next_number()  # a damaged sequence shows before any work
    store, previous = releases.store, load_previous(releases)
    encoder = encoder_place(open_folder(job.encoder))  # an encoder that cannot be used shows before any work
    fill_corpus(job, stages)
    damaged = is_damaged(store, previous, stages, by_content=verify)
    if not damaged and unchanged(job, previous, encoder):
        return _unchanged(previous, store, "nothing changed")
    _check(job, releases, previous)
    with lease(store), local_workers(may_be_small(job, previous), job.cluster.patience_s) as local:
        _warm(local, job, previous)
        corpus = ingest_corpus(job, releases, previous, stages)
        if not damaged and _same_rows(corpus) and same_making(job, previous, encoder):
            return _unchanged(previous, store, "files changed, but no row did")
        if local is not None and not is_small(job, store, corpus):
            local.close()
            local = None
        with (
            connect(job.cluster, stages, verbose=verbose, local=local) as workers,
            metrics.failures_counted(),
        ):
            run = Run(job, store, workers, stages)
            candidate, compared = _judge(run, previous, build_candidate(run, previous, corpus))
            outcome = publish_or_refuse(run, releases, candidate, compared)
            metrics.count_night(
                outcome.status
            )  # while Ray is connected: its agent takes metrics only until then
            return outcome


def _check(job: Job, releases: Releases, previous: PreviousRelease) -> None:
    """Find whatever would stop the night later, before any work; report a release that is not the newest."""
    check_store(releases.commits.store, creates_once=True)  # without it two nights could both publish
    check_kind(job, previous.release)
    outside_texts(job.gates)  # a file that cannot be read
    if held := releases.commits.hold():
        then = "tonight's candidate is made and judged, and not published"
        say(f"release {held.release} is held since {held.committed_at}: {then}")
    elif previous.release is not None and previous.release.release < max(releases.numbers()):
        then = "this night publishes anew what the corpus and the settings now say"
        say(f"release {previous.release.release} is current by a rollback; {then}")


def _warm(local: LocalWorkers | None, job: Job, previous: PreviousRelease) -> None:
    """Load the encoder while the corpus is read."""
    if local is not None and previous.release is not None:
        local.warm(EncodeTexts(anywhere(job.encoder), local.encode_settings(job.encode)))


def _same_rows(corpus: Corpus) -> bool:
    return not corpus.anew and not corpus.changes.any


def _judge(run: Run, previous: PreviousRelease, candidate: Candidate) -> tuple[Candidate, Compared]:
    """Run the gates and ask the fixed queries. Returns the candidate with its gates, and its comparison."""
    store, release = run.store, previous.release
    with run.stages("gates"):
        last = load_summary(store, release.release) if release else None
        queries = fixed_queries(store, candidate, last.answers if last else ())
        judged = run_gates(run, release, candidate, queries)
        answers = ask(run, candidate, queries, judged.asked)
    metrics.count_quarantined(candidate.manifest.counts)
    metrics.record_gates(judged.gates)
    manifest = candidate.manifest.model_copy(update={"gates": judged.gates, "canary": judged.canary})
    return replace(candidate, manifest=manifest), Compared(release, last, answers)


def _unchanged(previous: PreviousRelease, store: Store, why: str) -> NightOutcome:
    release = previous.release
    assert release is not None
    outcome = outcome_of("unchanged", release, store.uri)
    return replace(outcome, facts=outcome.facts | {"why": why})
