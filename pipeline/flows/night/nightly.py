"""Run a night: read, encode, transform, index, check the gates, publish. Unchanged work is reused."""

from collections.abc import Callable

from pipeline.flows.context import FlowContext
from pipeline.flows.corpus import harvest_corpus, open_releases
from pipeline.flows.encode.encode import encode, vector_units
from pipeline.flows.encode.encoder_copy import encoder_copy_path, keep_encoder
from pipeline.flows.events import told_of_errors
from pipeline.flows.index.build import IndexInput
from pipeline.flows.night.approval import unchanged_candidate
from pipeline.flows.night.candidate import Candidate, CandidateParts, LiveUnits, make_manifest
from pipeline.flows.night.check_gates import judge_candidate
from pipeline.flows.night.follow_up import Facts, check_root, follow_up, refusal_followed_up
from pipeline.flows.night.gates.corpus_gates import judge_corpus
from pipeline.flows.night.gates.judged_ids import check_judged_ids
from pipeline.flows.night.mlflow_run import mlflow_night
from pipeline.flows.night.night_workers import night_workers
from pipeline.flows.night.previous_release import (
    PreviousRelease,
    find_damage,
    has_same_files,
    load_previous,
    same_release,
)
from pipeline.flows.night.publish import (
    NightOutcome,
    publish_or_refuse,
    record_current,
    refuse_corpus,
    unchanged_outcome,
    unchanged_wait_outcome,
)
from pipeline.flows.night.report.releases_page import end_recorded
from pipeline.flows.night.steps import (
    check_before_reading,
    check_row_count,
    corpus_choice,
    extend_or_build,
    ingest_corpus,
)
from pipeline.flows.night.user_queries import encode_user_queries
from pipeline.flows.rows import LiveRows
from pipeline.flows.transform.decide import decide_transform
from pipeline.flows.workers.metrics_file import metrics_written_to
from pipeline.log import Stages, announce
from pipeline.models.folder.folder import announce_warnings, open_folder
from pipeline.settings import Job, ReleaseSettings
from pipeline.store.records.dead import DeadRows
from pipeline.store.records.units import Corpus
from pipeline.store.releases.erasures import lease_without_erasure
from pipeline.store.releases.release import Releases

Before = Callable[[ReleaseSettings, Releases, Stages], list[Facts]]
"""Does work before a night, and returns its steps."""


def nightly(
    job: Job,
    stages: Stages,
    *,
    verbose: bool = False,
    verify: bool = False,
    before: Before = lambda *_: [],
) -> NightOutcome:
    """Make and publish tonight's release.

    If another night published meanwhile, this one publishes nothing and ends as "overtaken". If files of the
    current release are missing, they are made again, even if the corpus did not change. On a held root, or
    with release.publish=approval, the candidate is made and judged, and then waits for its approval. At the
    end, `follow_up` exports and prunes.

    Args:
        verify: also compare every file of the current release with its sha256.
        before: work in the root before the current release is read, such as `erase_due`.

    Raises:
        GatesRefused: a gate did not pass; the candidate, or a report on its corpus, is kept for inspection.
        DataError: the sequence of commits has a gap, or a file of the current release was changed.
    """
    with (
        metrics_written_to(job.release.metrics_file),
        told_of_errors(job.release.on_event, job.release.root),
        end_recorded(releases := open_releases(job)),
        mlflow_night(job, releases.store, stages) as night,
    ):
        store = releases.store
        check_root(job.release, releases)
        steps = before(job.release, releases, stages)
        previous = load_previous(releases)
        record_current(releases, previous.release)
        folder = open_folder(job.encoder)  # an unusable encoder shows before any work
        encoder = encoder_copy_path(folder)
        announce_warnings(folder)
        harvest_corpus(job, stages)
        damage = find_damage(store, previous, stages, by_content=verify)
        if damage is not None:
            announce(f"{damage}; this night rebuilds what is missing and publishes a new release")
        up_to_date = None if damage else same_release(job, previous, encoder)
        if up_to_date and has_same_files(job, previous):
            return follow_up(job, releases, unchanged_outcome(job, releases, previous), stages, steps)
        if damage is None and (waiting := unchanged_candidate(job, releases, previous, encoder)):
            outcome = unchanged_wait_outcome(job, releases, previous, waiting)
            return follow_up(job, releases, outcome, stages, steps)

        check_before_reading(job, releases, previous)
        with (
            night_workers(job, store, previous, stages, verbose=verbose) as workers,
            refusal_followed_up(job, releases, stages),
        ):
            with lease_without_erasure(store):
                corpus = ingest_corpus(job, releases, previous, stages, workers.for_ingest())
                if up_to_date and corpus.has_same_rows:
                    outcome = unchanged_outcome(job, releases, previous, corpus)
                else:
                    context = workers.for_corpus(corpus)
                    outcome = night.outcome = make_release(
                        context, releases, previous, corpus, repairs=damage is not None
                    )
            return follow_up(job, releases, outcome, stages, steps)  # while Ray's agent takes metrics


def make_release(
    context: FlowContext, releases: Releases, previous: PreviousRelease, corpus: Corpus, *, repairs: bool
) -> NightOutcome:
    """Judge the corpus, build a candidate and judge it; publish it if it passes.

    Args:
        repairs: whether files of the previous release are missing.

    Raises:
        GatesRefused: a gate did not pass.
    """
    record_current(releases, previous.release)  # again, because Ray takes metrics only now
    judged = judge_corpus(context, previous, corpus)
    if judged.refusals:
        raise refuse_corpus(context, previous, corpus, judged)
    check_judged_ids(context, corpus)
    candidate = build_candidate(context, previous, corpus, judged.distinct_texts)
    comparison = judge_candidate(context, previous.release, candidate, judged, repairs=repairs)
    return publish_or_refuse(context, releases, previous, *comparison)


def build_candidate(
    context: FlowContext, previous: PreviousRelease, corpus: Corpus, distinct_texts: int
) -> Candidate:
    """Encode, transform and index the corpus. Results of an earlier run are reused."""
    job, store, folder = context.job, context.store, open_folder(context.job.encoder)
    encoder = keep_encoder(folder, store)
    vectors, stats = encode(context, corpus, previous.release, previous.waiting)
    units = vector_units(job, corpus, vectors)
    rows = LiveRows(store, folder.space_id, job.corpus.id, corpus.dead)
    decision = decide_transform(context, rows, corpus, units, previous.release)
    users = encode_user_queries(context)
    index_input = IndexInput(
        units, corpus.dead, decision.transform, folder.dim, user_queries=users.file if users else None
    )
    index, index_choices = extend_or_build(context, index_input, corpus, previous.release)
    live = LiveUnits(units, DeadRows(store, corpus.dead))
    check_row_count(index, live.rows)
    choices = (corpus_choice(corpus, previous), decision.choice(), *index_choices)
    parts = CandidateParts(corpus, distinct_texts, live, decision, index, encoder, choices)
    manifest = make_manifest(context, previous, parts)
    return Candidate(manifest, corpus, vectors, stats, decision, index, folder, users)
