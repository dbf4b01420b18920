"""Write the page of all releases, index.html at the root, from the commits and a summary of each release."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pipeline.config import digest_of
from pipeline.errors import DataError, PipelineError
from pipeline.index.measure.metrics import IndexMetrics
from pipeline.log import announce
from pipeline.store.files.base import Store, in_threads
from pipeline.store.records.write_once import load_or_make
from pipeline.store.releases.commits import Commit
from pipeline.store.releases.fixed_query_results import Answers
from pipeline.store.releases.manifest import ReleaseManifest, report_path
from pipeline.store.releases.release import Releases
from pipeline.store.releases.summary import Summary, summary_path

if TYPE_CHECKING:
    from pipeline.report.releases import Overview

PAGE = "index.html"
_VERSION = 3  # version of the page; pages of other versions are written again
_EVENTS = 20  # rollbacks and holds on the page


def write_summary(
    store: Store,
    manifest: ReleaseManifest,
    measured: IndexMetrics,
    seconds: float,
    answers: tuple[Answers, ...],
) -> None:
    """Store the summary of a new release.

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
        store.write(summary_path(manifest.release), summary.to_json())
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
def refresh_page_at_end(releases: Releases) -> Iterator[None]:
    """Refresh the page after the block, unless the block raises."""
    yield
    refresh_page(releases)


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
    if _shows(store, state) or not (history := releases.history()):
        return
    from pipeline.report.releases import render  # imported here, because most nights do not need it

    store.write(PAGE, render(_overview(releases, history, state)).encode())


def _shows(store: Store, state: str) -> bool:
    """Return whether the stored page shows this state."""
    try:
        return f"<!-- state {state} -->" in store.read(PAGE).decode(errors="replace")
    except FileNotFoundError:
        return False


def _overview(releases: Releases, history: Sequence[Commit], state: str) -> "Overview":
    """Collect the values that the page shows.

    Args:
        history: all commits, the oldest first.
    """
    from pipeline.report.releases import Overview, ReleaseRow

    numbers, first_commits = releases.numbers(), {commit.release: commit for commit in reversed(history)}
    summaries = in_threads(lambda number: _load_or_make_summary(releases, number), reversed(numbers))
    reports = {entry.path for entry in releases.store.list("releases", ".html")}
    current, commits_uri = releases.current(), releases.commits.store.uri
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
        damage=str(releases.commits.sequence_error(releases.commits.numbers()) or ""),
        state=state,
        commits_root=commits_uri if commits_uri != releases.store.uri else None,
    )


def _state_digest(releases: Releases) -> str:
    """Return a digest of everything that the page shows, from two listings."""
    stored = (*releases.commits.store.list("commits", ".json"), *releases.store.list("releases"))
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
