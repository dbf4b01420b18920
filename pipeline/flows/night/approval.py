"""Let a candidate that passed its gates wait for its approval, and publish it when it is approved."""

import getpass
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from pipeline.errors import (
    CandidateRefused,
    ConfigError,
    DataError,
    PublishConflict,
    RootHeld,
    TransientError,
)
from pipeline.flows.context import FlowContext
from pipeline.flows.events import tell
from pipeline.flows.night.gates.as_searcher import try_again
from pipeline.flows.night.previous_release import PreviousRelease, has_same_files, same_release
from pipeline.log import announce
from pipeline.report.night import NightReport, render
from pipeline.settings import EventSettings, Job
from pipeline.store.files.base import Store
from pipeline.store.files.lease import lease_without_prune
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.releases.commits import Approval, Commit, utc_now
from pipeline.store.releases.manifest import ReleaseManifest
from pipeline.store.releases.release import Releases
from pipeline.store.releases.summary import Summary, summary_path
from pipeline.store.releases.unpublished import record_night
from pipeline.store.releases.verify import check_sizes
from pipeline.store.releases.waiting import (
    DIGITS,
    WAITING,
    Waiting,
    commits_since,
    describe_overtaking,
    load_waiting,
)

_RELEASE_PAGE = "release.html"  # in a candidate's folder: the report that its release will have
_LEAST_DIGITS = 6  # by which a person may name a candidate


def waiting_pages(report: NightReport) -> dict[str, str]:
    """Return the pages of a candidate that waits: its report, and the one of the release that it will be."""
    name = report.candidate[:DIGITS]
    published = replace(report, status="published", number=_number_in_page(name))
    return {"report.html": render(report), _RELEASE_PAGE: render(published)}


def wait_for_approval(
    context: FlowContext,
    previous: PreviousRelease,
    manifest: ReleaseManifest,
    pages: Mapping[str, str],
    reason: str,
) -> Waiting:
    """Let a candidate wait, and tell of it. If another candidate waits, this one takes its place.

    Args:
        pages: result of `waiting_pages`.
        reason: why the candidate is not published.
    """
    store, receiver = context.store, context.job.release.on_event
    record = start_waiting(store, previous, manifest, pages, reason)
    uri, superseded = store.uri_of(record.folder), previous.waiting
    if superseded is not None and superseded.record.candidate != record.candidate:
        announce(
            f"candidate {superseded.record.candidate} no longer waits: {record.candidate} takes its place"
        )
        tell_superseded(receiver, store, superseded.record, f"candidate {record.candidate} takes its place")
    announce(f"candidate {record.candidate} waits for its approval: {uri}")
    facts = {"candidate": uri, "report": f"{uri}/report.html", "rows": manifest.rows, "reason": reason}
    tell(receiver, "waiting", store.uri, **facts)
    return record


def start_waiting(
    store: Store,
    previous: PreviousRelease,
    manifest: ReleaseManifest,
    pages: Mapping[str, str],
    reason: str,
) -> Waiting:
    """Store the manifest and the pages of a candidate, then the record by which it waits."""
    name = manifest.id[:DIGITS]
    folder, content = f"candidates/{name}", manifest.to_json()
    record = Waiting(
        candidate=name,
        manifest=FileRef.of(f"{folder}/manifest.json", content, manifest.rows),
        parent=manifest.parent,
        last_commit=previous.last_commit,
        first_ordinal=previous.next_ordinal,
        at=utc_now(),
        reason=reason,
        rows=manifest.rows,
    )
    store.write(record.manifest.path, content)
    for page, text in pages.items():
        store.write(f"{folder}/{page}", text.encode())
    store.write(WAITING, record.to_json())
    record_night(store, "waiting", reason, candidate=folder)
    return record


def tell_superseded(receiver: EventSettings, store: Store, record: Waiting, reason: str) -> None:
    """Tell that a candidate does not wait any more, although nobody has published it."""
    tell(receiver, "superseded", store.uri, candidate=store.uri_of(record.folder), reason=reason)


def unchanged_candidate(
    job: Job, releases: Releases, previous: PreviousRelease, encoder: str
) -> Waiting | None:
    """Return the record of the waiting candidate if tonight's would be the same and wait too, else None.

    Args:
        encoder: path of the encoder's copy in the store.
    """
    waiting, current = previous.waiting, previous.release.release if previous.release else None
    if waiting is None or waiting.record.parent != current:
        return None
    if job.release.publish != "approval" and releases.commits.hold() is None:
        return None
    try:
        check_sizes(releases.store, waiting.manifest)
    except DataError as error:
        announce(f"the candidate that waits is made again: {error}")
        return None
    like_previous = replace(previous, release=waiting.manifest, corpus=waiting.corpus)
    is_same = same_release(job, like_previous, encoder) and has_same_files(job, like_previous)
    return waiting.record if is_same else None


def withdraw(job: Job, store: Store, previous: PreviousRelease) -> None:
    """Let the waiting candidate wait no longer, because the corpus is again the current release's."""
    if previous.waiting is None or load_waiting(store) != previous.waiting.record:
        return
    store.delete(WAITING)
    record, reason = previous.waiting.record, "corpus and settings are those of the current release"
    announce(f"candidate {record.candidate} no longer waits: {reason}")
    tell_superseded(job.release.on_event, store, record, reason)


class Promotion(NamedTuple):
    """A candidate that is published."""

    commit: Commit
    is_new: bool
    """False if it had been published before, and is still current"""


def promote(releases: Releases, name: str, by: str, note: str = "") -> Promotion:
    """Publish the candidate that waits, after checking its files and the results of its gates again.

    It is published by the same conditional write as the release of a night, so that it is published once.

    Args:
        name: the candidate's folder, or the first digits of its id.
        by: who approves it.
        note: why, for the commit.

    Raises:
        ConfigError: `name` is not the name of a candidate, the candidate was published and its release is no
            longer current, or the root is held.
        CandidateRefused: the candidate does not wait (any more), another release has overtaken it, or a gate
            did not pass.
        DataError: a file of the candidate is missing or was changed, or a searcher cannot open it.
        TransientError: prune is running.
    """
    store, digits = releases.store, _digits_of(name)
    record = load_waiting(store)
    if record is None or not record.candidate.startswith(digits):
        return _promoted_before(releases, digits, record)
    approval = Approval(candidate=record.candidate, by=by, note=note, user=_user(), host=socket.gethostname())

    def check() -> Approval:
        _check_waiting(releases, record)
        return approval

    with lease_without_prune(
        store
    ):  # prune must not remove the files of a candidate that a night supersedes meanwhile
        try:
            check()
            manifest = record.load_manifest(store)
            _check_content(releases, record, manifest)
            page = store.read(f"{record.folder}/{_RELEASE_PAGE}").decode()
            published = releases.publish(
                manifest, lambda number: page.replace(_number_in_page(record.candidate), str(number)), check
            )
        except CandidateRefused:  # perhaps because another process has promoted it meanwhile
            if any(_approves(commit, digits) for commit in commits_since(releases.commits, record)):
                return _promoted_before(releases, digits, record)
            raise
        except PublishConflict as conflict:  # between the last check and the commit
            raise _overtaken(releases, record, str(conflict)) from None
        except RootHeld as held:
            where, remedy = store.uri_of(record.folder), "run again"
            raise TransientError(where, "a root that is not held", str(held), remedy) from None
        _publish_summary(store, record, published)
    commit = releases.commits.read(published.release)
    assert commit is not None, "it was created just now"
    return Promotion(commit, is_new=True)


def _check_waiting(releases: Releases, record: Waiting) -> None:
    """Raise an error if the candidate does not wait any more, or the root is held."""
    if (newest := load_waiting(releases.store)) != record:
        found = f"candidate {newest.candidate}, since {newest.at}" if newest else "none"
        raise _not_waiting(releases, record.candidate, found)
    since, current = commits_since(releases.commits, record), releases.current()
    why = describe_overtaking(record, since, current.release if current else None)
    if why is not None:
        raise _overtaken(releases, record, why)
    releases.refuse_if_held(record.candidate)


def _check_content(releases: Releases, record: Waiting, manifest: ReleaseManifest) -> None:
    """Raise an error if a gate did not pass, or a file is missing, was changed or cannot be used."""
    store = releases.store
    if refused := [gate.sentence for gate in manifest.gates.values() if not gate.passed]:
        raise CandidateRefused(
            store.uri_of(record.folder), "gates that passed", "; ".join(refused), "run manta nightly again"
        )
    check_sizes(store, manifest)
    parent = releases.get(record.parent) if record.parent is not None else None
    readable = try_again(store, parent, manifest)
    if not readable.passed:
        raise DataError(
            store.uri_of(record.folder),
            "a candidate whose files are as its night wrote them, and can be searched",
            readable.sentence,
            "delete the damaged files and run manta nightly, which makes them again",
        )


def _digits_of(name: str) -> str:
    """Return the first digits of the id of a candidate that a person names by them, or by its folder."""
    digits = name.rstrip("/").rpartition("/")[2].lower()
    if not re.fullmatch(rf"[0-9a-f]{{{_LEAST_DIGITS},{DIGITS}}}", digits):
        raise ConfigError(
            "releases promote: CANDIDATE",
            f"the folder of a candidate, or at least {_LEAST_DIGITS} digits of its id",
            repr(name),
            "manta releases list shows the candidate that waits",
        )
    return digits


def _promoted_before(releases: Releases, digits: str, record: Waiting | None) -> Promotion:
    """Return the commit that published a candidate earlier, if its release is current; else raise an error.

    Args:
        digits: first digits of the candidate's id.
        record: the candidate that waits.
    """
    approvals = [commit for commit in releases.history() if _approves(commit, digits)]
    if not approvals:
        found = f"candidate {record.candidate}, since {record.at}" if record else "none"
        raise _not_waiting(releases, digits, found)
    commit, current = approvals[-1], releases.current()
    if current is None or current.release != commit.release:
        raise ConfigError(
            releases.store.uri_of(f"candidates/{digits}"),
            "a candidate that was not published yet",
            f"release {commit.release} since {commit.committed_at}, which is not current any more",
            f"to make it current again: manta releases rollback {releases.store.uri} {commit.release}",
        )
    return Promotion(commit, is_new=False)


def _approves(commit: Commit, digits: str) -> bool:
    """Return whether a commit published the candidate whose id begins with these digits."""
    return commit.approval is not None and commit.approval.candidate.startswith(digits)


def _not_waiting(releases: Releases, name: str, found: str) -> CandidateRefused:
    return CandidateRefused(
        f"{releases.store.uri}: candidate {name}",
        "the candidate that waits",
        found,
        "manta releases list shows what became of the others; a later candidate has taken their place",
    )


def _overtaken(releases: Releases, record: Waiting, why: str) -> CandidateRefused:
    return CandidateRefused(
        releases.store.uri_of(record.folder),
        "a candidate that no other release has overtaken",
        why,
        "run manta nightly, which makes a candidate from the current release",
    )


def _publish_summary(store: Store, record: Waiting, published: ReleaseManifest) -> None:
    summary = None
    try:
        summary = Summary.load(store, f"{record.folder}/summary.json")
    except DataError as error:
        announce(f"the page of all releases shows less of release {published.release}: {error}")
    summary = (summary or Summary.of(published)).model_copy(update={"release": published.release})
    store.write(summary_path(published.release), summary.to_json())


def _number_in_page(candidate: str) -> str:
    """Return the text that stands for the number in the page of the release that a candidate will be.

    No text of a corpus can contain it, because a candidate's id depends on all of its texts.
    """
    return f"release-{candidate}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run as a user without a name
        return str(os.getuid())
