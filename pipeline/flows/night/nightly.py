"""Run a night: read, encode, transform, index, check the gates, publish. Unchanged parts are reused."""

from contextlib import nullcontext

from pipeline.flows.corpus import harvest_corpus, open_releases
from pipeline.flows.encode.encoder_copy import encoder_copy_path
from pipeline.flows.night.gates import judge_candidate
from pipeline.flows.night.ingest_workers import ingest_workers
from pipeline.flows.night.outcome import NightOutcome, outcome_of, publish_or_refuse
from pipeline.flows.night.overview import refresh_page_at_end
from pipeline.flows.night.previous import (
    PreviousRelease,
    find_damage,
    has_same_files,
    load_previous,
    same_release,
)
from pipeline.flows.night.stages import (
    build_candidate,
    check_index_and_transform,
    ingest_corpus,
    is_small,
    try_encoder,
    warm_workers,
)
from pipeline.flows.night.user_queries import read_user_queries
from pipeline.flows.run import Run
from pipeline.flows.workers import metrics
from pipeline.flows.workers.cluster import connect
from pipeline.log import Stages, say
from pipeline.models.folder.folder import open_folder
from pipeline.settings import Job
from pipeline.store.lease import lease
from pipeline.store.probe import check_store
from pipeline.store.release import Releases


def nightly(job: Job, stages: Stages, *, verbose: bool = False, verify: bool = False) -> NightOutcome:
    """Make and publish tonight's release.

    If another night published meanwhile, this one publishes nothing and ends as "overtaken". If files of the
    current release are missing, they are made again, even if the corpus did not change. On a held root the
    candidate is made, judged and kept, but not published.

    Args:
        verify: also compare every file of the current release with its sha256.

    Raises:
        GatesRefused: a gate did not pass; the candidate is kept for inspection.
        DataError: the sequence of commits has a gap, or a file of the current release was changed.
    """
    releases = open_releases(job)
    with refresh_page_at_end(releases):
        releases.commits.next_number()  # a damaged sequence shows before any work
        store = releases.store
        previous = load_previous(releases)
        encoder = encoder_copy_path(open_folder(job.encoder))  # an unusable encoder shows before any work
        harvest_corpus(job, stages)
        damage = find_damage(store, previous, stages, by_content=verify)
        if damage is not None:
            say(f"{damage}; this night makes again what is missing, and publishes it as a new release")
        up_to_date = None if damage else same_release(job, previous, encoder)
        if up_to_date and has_same_files(job, previous):
            return outcome_of("unchanged", up_to_date, store.uri, {"why": "nothing changed"})
        _check(job, releases, previous)
        with (
            lease(store),
            warm_workers(job, previous) as local,
            nullcontext()
            if previous.has_space(open_folder(job.encoder).space_id)
            else try_encoder(job, store, stages, local, verbose=verbose),
            ingest_workers(job, previous, stages, verbose=verbose) as map_tasks,
        ):
            corpus = ingest_corpus(job, releases, previous, stages, map_tasks)
            if up_to_date and not corpus.rebuild_reason and not corpus.changes.any:
                return outcome_of(
                    "unchanged", up_to_date, store.uri, {"why": "files changed, but no row did"}
                )
            # Local workers were started early because the night might be small; a large one needs Ray.
            if local is not None and not is_small(job, store, corpus, previous):
                local.close()
                local = None
            with (
                connect(job.cluster, stages, verbose=verbose, local=local) as workers,
                metrics.count_failures(),
            ):
                run = Run(job, store, workers, stages)
                candidate = build_candidate(run, previous, corpus)
                outcome = publish_or_refuse(run, releases, *judge_candidate(run, previous.release, candidate))
                metrics.count_night(outcome.status)  # Ray's agent takes metrics only while it is connected
                return outcome


def _check(job: Job, releases: Releases, previous: PreviousRelease) -> None:
    """Find errors that would stop the night later; log whether the root is held or rolled back."""
    check_store(releases.commits.store, creates_once=True)  # without it two nights could both publish
    check_index_and_transform(job, previous.release)
    read_user_queries(job.gates)  # raises for an unreadable file
    if held := releases.commits.hold():
        then = "tonight's candidate is made and judged, but not published"
        say(f"release {held.release} has been held since {held.committed_at}: {then}")
    elif previous.release is not None and previous.release.release < max(releases.numbers()):
        then = "tonight's release is made from the current corpus and settings, and replaces it"
        say(f"release {previous.release.release} is current by a rollback; {then}")
