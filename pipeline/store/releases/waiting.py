"""The candidate that waits for its approval: a candidate that passed its gates and was not published.

It is named by candidates/waiting.json, which each night replaces whose candidate waits, so that at most one
candidate waits. It can be published as long as no release was published since its night began.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from pipeline.errors import DataError
from pipeline.log import announce
from pipeline.store.files.base import Store
from pipeline.store.records.sealed_json import FileRef, Stored
from pipeline.store.records.units import Corpus
from pipeline.store.releases.commits import Commit, Commits
from pipeline.store.releases.manifest import ReleaseManifest
from pipeline.store.releases.unpublished import Ending, UnpublishedNight

WAITING = "candidates/waiting.json"
DIGITS = 24  # number of digits of a candidate's id in the name of its folder


class Waiting(Stored):
    """The record of the candidate that waits."""

    candidate: str
    """first digits of the manifest's id"""
    manifest: FileRef
    """the manifest, in the candidate's folder"""
    parent: int | None
    """release that was current when its night began; None before the first"""
    last_commit: int
    """highest commit when its night began; 0 without commits"""
    first_ordinal: int
    """lowest ordinal that no unit of any release had used then; units of its night have higher ones"""
    at: str
    """ISO 8601, UTC, to the second"""
    reason: str
    rows: int

    @property
    def folder(self) -> str:
        """Folder of the candidate below the root."""
        return f"candidates/{self.candidate}"

    def load_manifest(self, store: Store) -> ReleaseManifest:
        """Load the manifest. Raises DataError if it is missing or was changed."""
        where = store.uri_of(self.manifest.path)
        try:
            return ReleaseManifest.from_json(self.manifest.read(store), where, store)
        except FileNotFoundError:
            raise DataError(
                where,
                "the manifest of the candidate that waits",
                "no such file",
                f"restore it, or delete {store.uri_of(WAITING)}; the next night makes the candidate again",
            ) from None


class WaitingRelease(NamedTuple):
    """A waiting candidate, from whose units a later night copies vectors."""

    record: Waiting
    manifest: ReleaseManifest
    corpus: Corpus


def load_waiting(store: Store) -> Waiting | None:
    """Load the record of the candidate that waits, or waited last; None without one.

    Raises:
        DataError: the record is damaged.
    """
    try:
        return Waiting.load(store, WAITING)
    except DataError as error:
        raise DataError(
            error.where,
            "the record of the candidate that waits",
            " ".join(error.found.split()),
            "restore this file, or delete it; the next night makes the candidate again",
        ) from None


def commits_since(commits: Commits, record: Waiting) -> list[Commit]:
    """List the commits since the night of a waiting candidate began, without void ones.

    Raises:
        DataError: such a commit is damaged.
    """
    numbers = [number for number in commits.numbers() if number > record.last_commit]
    found = map(commits.read_or_raise, numbers)
    return [commit for commit in found if commit is not None and commit.kind != "void"]


def is_overtaken(since: Sequence[Commit]) -> bool:
    """Return whether a release was published since the candidate's night began, the candidate included.

    A candidate is overtaken by an erasure, too: it may have the rows.
    """
    return any(commit.kind in ("publish", "erase") for commit in since)


def load_waiting_release(store: Store, commits: Commits, next_ordinal: int) -> WaitingRelease | None:
    """Load the candidate that waits, with its corpus, for a night that copies its vectors.

    Args:
        next_ordinal: lowest ordinal that no unit of any release has used.

    Returns:
        None if no candidate waits, or the one that does cannot be used; then a log line says why.
    """
    try:
        record = load_waiting(store)
        if record is None or is_overtaken(commits_since(commits, record)):
            return None
        if record.first_ordinal != next_ordinal:  # a pruned release had used the ordinals of its units
            announce(
                f"no vector is copied from candidate {record.candidate}: releases were pruned since then"
            )
            return None
        manifest = record.load_manifest(store)
        return WaitingRelease(record, manifest, Corpus.read(store, manifest.corpus))
    except (DataError, FileNotFoundError) as error:
        announce(f"warning: nothing is copied from the candidate that waits: {error}")
        return None


class WaitingState(NamedTuple):
    """The last candidate that waited, and whether it can be published now."""

    record: Waiting
    overtaken_by: str | None
    """why it cannot be published any more; None if it waits"""


def waiting_state(store: Store, commits: Commits, current: int | None) -> WaitingState | None:
    """Return the state of the candidate that waited last; None without one, or if it was published.

    Args:
        current: number of the current release; None if there is none.

    Raises:
        DataError: the record, or a commit since then, is damaged.
    """
    record = load_waiting(store)
    if record is None:
        return None
    since = commits_since(commits, record)
    if any(commit.approval and commit.approval.candidate == record.candidate for commit in since):
        return None
    return WaitingState(record, describe_overtaking(record, since, current))


def describe_overtaking(record: Waiting, since: Sequence[Commit], current: int | None) -> str | None:
    """Describe what made a waiting candidate outdated; None if it can be published.

    Args:
        since: the commits since its night began.
        current: number of the current release; None if there is none.
    """
    if not is_overtaken(since) and record.parent == current:
        return None
    changes = "; ".join(
        f"commit {commit.commit} ({commit.kind} of release {commit.release}) at {commit.committed_at}"
        for commit in since
    )
    base = "no release" if record.parent is None else f"release {record.parent}"
    now = "none is" if current is None else f"release {current} is"
    return f"it was computed from {base}, {now} current since: {changes or 'no commit'}"


def ending_of(
    night: UnpublishedNight, state: WaitingState | None, history: Sequence[Commit]
) -> Literal["waiting", "overtaken", "superseded", "promoted"] | Ending:
    """Return what became of a night that published nothing; for a candidate that waited, its present state.

    Args:
        state: result of `waiting_state`.
        history: all commits.
    """
    if night.status != "waiting" or night.candidate is None:
        return night.status
    if state is not None and night.candidate == state.record.folder:
        return "overtaken" if state.overtaken_by else "waiting"
    approved = {f"candidates/{commit.approval.candidate}" for commit in history if commit.approval}
    return "promoted" if night.candidate in approved else "superseded"
