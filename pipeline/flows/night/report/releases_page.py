"""Write the page of all releases, index.html at the root, from the commits and a summary of each release."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pipeline.config import digest_of
from pipeline.errors import DataError, GatesRefused, PipelineError
from pipeline.exit_codes import describe_end, exit_code_of
from pipeline.flows.workers.metrics import outcome_of_error
from pipeline.index.measure.metrics import IndexMetrics
from pipeline.log import announce, at_error
from pipeline.store.files.base import Store, in_threads
from pipeline.store.records.write_once import load_or_make
from pipeline.store.releases.commits import Commit
from pipeline.store.releases.fixed_query_results import Answers
from pipeline.store.releases.manifest import ReleaseManifest, report_path
from pipeline.store.releases.release import Releases
from pipeline.store.releases.summary import Summary, summary_path
from pipeline.store.releases.unpublished import (
    NIGHTS,
    SHOWN,
    UnpublishedNight,
    record_night,
    unpublished_nights,
)
from pipeline.store.releases.waiting import DIGITS, WAITING, ending_of, waiting_state

if TYPE_CHECKING:
    from pipeline.report.releases import Overview

PAGE = "index.html"
_VERSION = 4  # version of the page; pages of other versions are written again
_EVENTS = 20  # rollbacks and holds on the page
_RECORDING_S = 10.0


def write_summary(
    store: Store,
    manifest: ReleaseManifest,
    measured: IndexMetrics,
    seconds: float,
    answers: tuple[Answers, ...],
) -> None:
    """Store the summary of a new release, or of a candidate that waits, in its folder.

    It contains the night's duration, and recall and latency even if they have no gate. An error is logged,
    not raised: the page then lacks these values.
    """
    measured_tonight = {
        "recall_at_10": measured.recall["10"].value,
        "p50_ms": round(measured.latency.p50_ms, 3),
        "p99_ms": round(measured.latency.p99_ms, 3),
        "seconds": round(seconds, 3),
        "answers": answers,
    }
    try:
        summary = Summary.of(manifest).model_copy(update=measured_tonight)
        folder = f"candidates/{manifest.id[:DIGITS]}"
        path = summary_path(manifest.release) if manifest.release else f"{folder}/summary.json"
        store.write(path, summary.to_json())
    except (PipelineError, OSError) as error:
        announce(f"the summary of release {manifest.release} is not stored: {error}")


def load_summary(store: Store, number: int) -> Summary | None:
    """Load the summary of release `number`; None if it is missing or damaged. Damage is logged."""
    try:
        return Summary.load(store, summary_path(number))
    except DataError as error:
        announce(f"the report compares less with release {number}: {error}")
        return None


@contextmanager
def end_recorded(releases: Releases) -> Iterator[None]:
    """Refresh the page after the night that runs in the block; first record the error that ends it, if any.

    The record of an error, and the page after it, have ten seconds: the store may be the reason of the error.
    """

    def record(error: BaseException) -> None:
        recording = threading.Thread(target=_record_error, args=(releases, error), daemon=True)
        recording.start()
        recording.join(_RECORDING_S)
        if recording.is_alive():
            announce("the end of this night is not recorded below the root: the store does not answer")

    with at_error(record):
        yield
    refresh_page(releases)


def _record_error(releases: Releases, error: BaseException) -> None:
    """Record the night that an error ends, and refresh the page. A failure is logged, not raised."""
    store, candidate, reason = releases.store, None, describe_end(error)
    if isinstance(error, GatesRefused):
        candidate, reason = error.candidate.removeprefix(f"{store.uri}/"), "; ".join(error.refusals)
    try:
        if not releases.commits.numbers() and not store.list("candidates"):
            return  # perhaps no root: the settings may name the folder of something else
        status, code = outcome_of_error(error), exit_code_of(error)
        record_night(store, status, reason, exit_code=code, candidate=candidate)
        refresh_page(releases)
    except (PipelineError, OSError) as failure:
        announce(f"the end of this night is not recorded below the root: {failure}")


def refresh_page(releases: Releases) -> None:
    """Write the page again, atomically, if it does not show the present state of the store.

    An error is logged, not raised.
    """
    try:
        _write_page(releases)
    except (PipelineError, OSError) as error:
        announce(f"{PAGE} is not refreshed: {error}")


def _write_page(releases: Releases) -> None:
    store = releases.store
    # computed first: if somebody commits from here on, the next call writes the page again
    state = _state_digest(releases)
    if _shows(store, state):
        return
    history, nights = releases.history(), unpublished_nights(store)
    if not history and not nights:
        return
    overview = _overview(releases, history, nights, state)
    from pipeline.report.releases import render  # imported here, because most nights do not need it

    store.write(PAGE, render(overview).encode())


def _shows(store: Store, state: str) -> bool:
    """Return whether the stored page shows this state."""
    try:
        return f"<!-- state {state} -->" in store.read(PAGE).decode(errors="replace")
    except FileNotFoundError:
        return False


def _overview(
    releases: Releases, history: Sequence[Commit], nights: Sequence[UnpublishedNight], state: str
) -> "Overview":
    """Collect the values that the page shows.

    Args:
        history: all commits, the oldest first.
        nights: records of nights that published nothing, the newest first.
    """
    from pipeline.report.releases import Overview, ReleaseRow, UnpublishedRow

    numbers, first_commits = releases.numbers(), {commit.release: commit for commit in reversed(history)}
    summaries = in_threads(lambda number: _load_or_make_summary(releases, number), reversed(numbers))
    reports = {entry.path for entry in releases.store.list("releases", ".html")}
    current, commits_uri = releases.current(), releases.commits.store.uri
    damage, state_of_wait = releases.commits.sequence_error(releases.commits.numbers()), None
    try:
        state_of_wait = waiting_state(releases.store, releases.commits, current.release if current else None)
    except DataError as error:
        damage = damage or error
    return Overview(
        root=releases.store.uri,
        current=current.release if current else None,
        held=releases.commits.hold(),
        rows=tuple(
            ReleaseRow(each, first_commits.get(each.release), report_path(each.release) in reports)
            for each in summaries
            if each
        ),
        events=tuple(commit for commit in reversed(history) if commit.kind != "publish")[:_EVENTS],
        pruned=len({commit.release for commit in history}) - len(numbers),
        damage=str(damage or ""),
        state=state,
        commits_root=commits_uri if commits_uri != releases.store.uri else None,
        waiting=state_of_wait.record if state_of_wait and not state_of_wait.overtaken_by else None,
        unpublished=tuple(
            UnpublishedRow(night, ending_of(night, state_of_wait, history)) for night in nights[:SHOWN]
        ),
        more_unpublished=max(0, len(nights) - SHOWN),
    )


def _state_digest(releases: Releases) -> str:
    """Return a digest of everything that the page shows, from listings."""
    waiting = releases.store.entry(WAITING)
    stored = (
        *releases.commits.store.list("commits", ".json"),
        *releases.store.list("releases"),
        *releases.store.list(NIGHTS),
        *((waiting,) if waiting else ()),
    )
    return digest_of(
        [_VERSION, releases.store.uri, [[entry.path, entry.size, entry.stamp] for entry in stored]]
    )


def _load_or_make_summary(releases: Releases, number: int) -> Summary | None:
    """Load the summary of a release, or make it from its manifest; None if either is damaged."""
    store, path = releases.store, summary_path(number)
    try:
        return load_or_make(store, path, Summary, lambda: Summary.of(releases.get(number)))
    except DataError:
        return None
