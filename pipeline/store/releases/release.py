"""Releases: numbered, immutable snapshots, each made current by a commit that is created once."""

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Literal, Self

from pipeline.errors import ConfigError, DataError, PublishConflict, RootHeld, TransientError
from pipeline.log import announce
from pipeline.store.files.base import Store, in_threads
from pipeline.store.files.lease import lease_without_prune
from pipeline.store.files.local import LocalStore
from pipeline.store.files.open_store import open_store
from pipeline.store.records.release_units import UnitTable
from pipeline.store.records.sealed_json import FileRef, OtherSchema
from pipeline.store.releases.commits import Approval, Commit, Commits, RewrittenManifest, commit_path, utc_now
from pipeline.store.releases.manifest import (
    ReleaseManifest,
    erased_manifest_path,
    is_erased_manifest,
    manifest_path,
    report_path,
)
from pipeline.store.releases.verify import Fault, size_faults


class ManifestChanged(DataError):
    """The manifest of a release differs from the committed one, or the table of its units is missing."""


def load_manifest(store: Store, commit: Commit) -> ReleaseManifest | None:
    """Load the manifest of a commit; None for a void commit, or if the release was pruned.

    Raises:
        ManifestChanged: the manifest was changed, or the table of its units is missing or incomplete.
    """
    if commit.manifest is None or commit.sha256 is None:
        return None
    where = store.uri_of(commit.manifest)
    try:
        content = store.read(commit.manifest)
    except FileNotFoundError:  # pruned
        return None
    if (found := sha256(content).hexdigest()) != commit.sha256:
        raise ManifestChanged(
            where,
            f"sha256 {commit.sha256[:16]}...",
            f"{found[:16]}...",
            "it was changed after it was published: restore it, or roll back to another release",
        )
    manifest = ReleaseManifest.from_json(content, where, store)
    if isinstance(manifest.units, UnitTable) and not manifest.units.is_complete():
        raise ManifestChanged(
            store.uri_of(manifest.units.file.path),
            f"the table of the {len(manifest.units):,} units of release {manifest.release}",
            "no such file, or one of another size",
            f"restore it, or roll back to another release; without a copy, delete {where}",
        )
    return manifest


# A publisher creates its commit milliseconds after its manifest; if the commit is not there after this time,
# the publisher counts as killed.
_RESERVATION_S = 10.0
_SHOWN_ROOTS = 4


class Releases:
    """The releases below one root. Readers take the highest commit whose manifest exists and matches."""

    def __init__(self, store: Store, commits: Store | None = None) -> None:
        self.store = store
        self.commits = Commits(commits or store)

    @classmethod
    def open(cls, root: str | Path, commits_root: str | Path | None = None) -> Self:
        """Open the releases below `root`, with commits at `commits_root` if they are in another store."""
        return cls(open_store(root), open_store(commits_root) if commits_root else None)

    def __repr__(self) -> str:
        stores = dict.fromkeys([self.store, self.commits.store])
        return f"Releases({', '.join(map(repr, stores))})"

    def history(self) -> list[Commit]:
        """List the commits in order of number, without void and unreadable ones."""
        return self.commits.history()

    def current(self) -> ReleaseManifest | None:
        """Return the current release; None before the first.

        A damaged commit, or a release whose manifest or table of units was changed or deleted, is skipped
        with a log line.
        """
        numbers = self.commits.numbers()
        if error := self.commits.sequence_error(numbers):
            announce(f"the highest commit is used although the sequence is damaged: {error}")
        for number in reversed(numbers):
            if (commit := self.commits.read(number)) is None:
                where = self.commits.store.uri_of(commit_path(number))
                announce(f"{where} is skipped: it is damaged, or was truncated before it took effect")
                continue
            commit = self.commits.follow(commit)
            try:
                if manifest := load_manifest(self.store, commit):
                    return manifest
                if commit.manifest is not None:
                    announce(
                        f"release {commit.release} is skipped: {self.store.uri_of(commit.manifest)} is gone"
                    )
            except ManifestChanged as error:
                announce(f"release {commit.release} is skipped: {error}")
        return None

    def get(self, number: int) -> ReleaseManifest:
        """Return release `number`. Raises DataError if it does not exist or differs from its commit."""
        return self._commit_and_manifest(number)[1]

    def get_or_current(self, number: int | None) -> ReleaseManifest:
        """Return release `number`, or the current one for None. Raises DataError if there is none."""
        manifest = self.current() if number is None else self.get(number)
        if manifest is None:
            raise no_release(self.store)
        return manifest

    def _commit_and_manifest(self, number: int) -> tuple[Commit, ReleaseManifest]:
        """Return a commit that makes release `number` current, and the release's manifest.

        The commit is the one that published the release, which has the same number, or else a later one, with
        the present manifest.
        """
        found = map(self.commits.read, (number, *reversed(self.commits.numbers())))
        commits = (commit for commit in found if commit is not None and commit.release == number)
        names = {entry.path for entry in self.store.list(f"releases/{number:08d}", ".json")}
        is_replaced = any(map(is_erased_manifest, names))
        for commit in commits:
            present = self.commits.follow(commit) if is_replaced else commit
            if manifest := load_manifest(self.store, present):
                return present, manifest
        raise DataError(
            f"{self.store.uri}: release {number}",
            "a committed release",
            "none with this number",
            f"the existing releases are: {', '.join(map(str, self.numbers())) or 'none'}",
        )

    def numbers(self) -> list[int]:
        """List the numbers of the committed releases that were not pruned, ascending."""
        committed = sorted({commit.release for commit in self.history() if commit.release is not None})
        existing = in_threads(self.store.exists, self.manifest_paths(committed).values())
        return [number for number, exists in zip(committed, existing, strict=True) if exists]

    def manifest_paths(self, numbers: Iterable[int]) -> dict[int, str]:
        """Return the paths of the present manifests of releases, which need not exist, in the given order.

        An erasure gives a release another manifest. Its commit has a higher number than the release.
        """
        numbers = list(numbers)
        rewritten = self.commits.rewritten(after=min(numbers, default=0))
        return {
            number: rewritten[number].manifest if number in rewritten else manifest_path(number)
            for number in numbers
        }

    def missing_files(self, history: Sequence[Commit]) -> dict[int, list[Fault]]:
        """Return the deleted manifests and reports, by release number.

        Pruned releases are left out: prune deletes all files of a release's folder, and it never removes the
        release of the newest commit.

        Args:
            history: result of `history()`.
        """
        stored = {entry.path for entry in self.store.list("releases")}
        committed = [commit.release for commit in history if commit.release is not None]
        missing: dict[int, list[Fault]] = {}
        for number, path in self.manifest_paths(sorted(set(committed))).items():
            expected = {path: "a manifest", report_path(number): "a report"}
            faults = [Fault(path, kind, None) for path, kind in expected.items() if path not in stored]
            folder = f"releases/{number:08d}/"
            if faults and (number == committed[-1] or any(path.startswith(folder) for path in stored)):
                missing[number] = faults
        return missing

    def newest(self) -> ReleaseManifest | None:
        """Return the release with the highest number that exists, current or not; None without releases.

        A release whose commit is damaged counts, too. A number that was reserved but not committed does not.
        Only the last commits are read.
        """
        newest: ReleaseManifest | None = None
        for number in reversed(self.commits.numbers()):
            if newest is not None and number <= newest.release:
                break  # no earlier commit has a higher release
            try:
                commit = self.commits.read_or_raise(number)
                release = commit.release if commit else None
            except DataError:
                release = number
            if release is not None and (newest is None or release > newest.release):
                newest = self._load_readable(release) or newest
        return newest

    def next_ordinal(self) -> int:
        """Return the first unit ordinal that no release has used; 0 without releases.

        Ordinals grow with release numbers, also after a rollback, so that no address is ever used for another
        row. A release whose number was reserved but not committed does not count: the night that is started
        again gets the same addresses.
        """
        if (newest := self.newest()) is None:
            return 0
        # earlier versions did not record units without rows
        return max(newest.next_ordinal, *(part.next_ordinal for part in newest.index_parts()))

    def _load_readable(self, number: int) -> ReleaseManifest | None:
        """Load the manifest of release `number`; None if it is missing or damaged."""
        try:
            return ReleaseManifest.load(self.store, self.manifest_paths([number])[number])
        except OtherSchema:  # the release uses ordinals that this version cannot read
            raise
        except DataError:  # `current` skips a damaged release, so nothing uses its ordinals
            return None

    def publish(
        self,
        candidate: ReleaseManifest,
        report: Callable[[int], str],
        check: Callable[[], Approval | None] = lambda: None,
    ) -> ReleaseManifest:
        """Make the candidate the current release.

        Two racing publishers try to create the commit of the same number, so that exactly one of them wins.
        After an error nothing was changed.

        Args:
            report: returns the HTML report for a release number.
            check: raises an error if the candidate must not follow the commits that exist; returns the
                approval that is recorded, if there is one. Called before every attempt to commit.

        Returns:
            The manifest with its release number.

        Raises:
            PublishConflict: another run has published since `candidate.parent`.
            RootHeld: the root is held.
            TransientError: a file of the candidate is missing or truncated.
        """
        number = self.commits.next_number()
        while True:
            approval = check()
            self._check_publishable(candidate)
            release = candidate.model_copy(update={"release": number})
            if self._reserve(release):
                self.store.write(report_path(number), report(number).encode())
                commit = Commit(
                    commit=number,
                    kind="publish",
                    release=number,
                    manifest=manifest_path(number),
                    sha256=sha256(release.to_json()).hexdigest(),
                    committed_at=utc_now(),
                    approval=approval,
                )
                if self.commits.create(commit):
                    return release
            number += 1

    def rollback(self, number: int) -> Commit:
        """Make release `number` current again by a new commit.

        Raises:
            DataError: there is no such release.
            ConfigError: the root is held.
            TransientError: prune is running, and may remove the release.
        """
        with lease_without_prune(self.store):
            published, _ = self._commit_and_manifest(number)
            while True:
                following = self.commits.next_number()
                self.refuse_if_held(number)
                if commit := self._recommit(published, following, "rollback"):
                    return commit

    def hold(self, number: int | None = None, reason: str = "") -> Commit:
        """Keep a release current until `unhold`.

        If the release is held already, nothing is changed. A hold is a commit with a number of its own: a
        night that is about to publish under this number fails to create its commit, and then finds the hold.

        Args:
            number: the release; None holds the current one.

        Raises:
            DataError: there is no such release.
            ConfigError: another release is held.
            TransientError: prune is running, and may remove the release.
        """
        with lease_without_prune(self.store):
            while True:
                following = self.commits.next_number()
                wanted = self.get_or_current(number).release
                published, _ = self._commit_and_manifest(wanted)
                if (held := self.commits.hold()) and held.release == wanted:
                    return held
                self.refuse_if_held(wanted)
                if commit := self._recommit(published, following, "hold", reason):
                    return commit

    def unhold(self) -> Commit | None:
        """End the hold, so that the next night publishes again. Returns None if nothing was held."""
        while True:
            following = self.commits.next_number()
            held = self.commits.hold()
            if held is None:
                return None
            if commit := self._recommit(held, following, "unhold"):
                return commit

    def erase(
        self,
        number: int,
        erasure: str,
        manifests: Sequence[ReleaseManifest],
        reason: str = "",
        left_out: FileRef | None = None,
    ) -> Commit | None:
        """Replace the manifests of releases by others, from which rows were erased, with one commit.

        The current release stays current, with its new manifest if it has one. All files that the new
        manifests name must be stored.

        Args:
            number: the commit's number, chosen before the caller looked at the root.
            erasure: id of the erasure.
            manifests: the new manifests, each with the number of its release.
            left_out: hashes of the ids that nights leave out from now on; None to change nothing.

        Returns:
            The commit; None if another commit took the number, and nothing was changed.
        """
        current = self.get_or_current(None).release
        rewritten = dict[int, RewrittenManifest]()
        for manifest in manifests:
            content, (published, _) = manifest.to_json(), self._commit_and_manifest(manifest.release)
            before = str(published.sha256)
            digest = sha256(content).hexdigest()
            path = erased_manifest_path(manifest.release, digest)
            self.store.write(path, content)
            rewritten[manifest.release] = RewrittenManifest(
                release=manifest.release, before=before, manifest=path, sha256=digest
            )
        published, _ = self._commit_and_manifest(current)
        own = rewritten.get(current)
        commit = Commit(
            commit=number,
            kind="erase",
            release=current,
            manifest=own.manifest if own else published.manifest,
            sha256=own.sha256 if own else published.sha256,
            committed_at=utc_now(),
            reason=reason,
            erasure=erasure,
            rewritten=tuple(rewritten.values()),
            left_out=left_out,
        )
        return commit if self.commits.create(commit) else None

    def _recommit(
        self, earlier: Commit, number: int, kind: Literal["rollback", "hold", "unhold"], reason: str = ""
    ) -> Commit | None:
        """Commit the release of an earlier commit again, with its present manifest.

        Returns None if another commit took the number.

        Args:
            number: the commit's number, chosen before the caller looked at the root: a commit that was made
                since then has this number, so the caller looks again and overrides nothing.
        """
        commit = self.commits.follow(earlier).model_copy(
            update={
                "commit": number,
                "kind": kind,
                "committed_at": utc_now(),
                "reason": reason,
                "approval": None,
                "erasure": None,
                "rewritten": (),
                "left_out": None,
            }
        )
        return commit if self.commits.create(commit) else None

    def refuse_if_held(self, wanted: int | str) -> None:
        """Raise ConfigError if a release cannot become current because the root is held.

        Args:
            wanted: number of the release, or the name of a candidate.
        """
        if held := self.commits.hold():
            what = f"release {wanted}" if isinstance(wanted, int) else f"candidate {wanted}"
            raise ConfigError(
                f"{self.store.uri}: {what}",
                "a root that is not held",
                f"release {held.release} held since {held.committed_at}",
                f"end the hold first: manta releases release {self.store.uri}",
            )

    def check_current(self, candidate: ReleaseManifest) -> None:
        """Raise PublishConflict if another release than the candidate's parent is current."""
        current = self.current()
        if current is not None and current.release != candidate.parent:
            raise PublishConflict(number=current.release, winner=current.id)

    def _check_publishable(self, candidate: ReleaseManifest) -> None:
        if held := self.commits.hold():
            raise RootHeld(int(held.release or 0), held.committed_at, self.store.uri, held.reason)
        self.check_current(candidate)
        for fault in size_faults(self.store, candidate):
            raise TransientError(
                self.store.uri_of(fault.path),
                "a file that the new release needs" if fault.is_missing else fault.expected,
                fault.found or "no such file: prune ran during this night",
                "run again, which makes such files again",
            )

    def _reserve(self, release: ReleaseManifest) -> bool:
        """Reserve the release's number. Returns False if another run has reserved it.

        If the other run does not commit in time, a void commit takes the number, so that the other run cannot
        commit later.
        """
        if self._store_manifest(release):
            return True
        deadline = time.monotonic() + _RESERVATION_S
        while time.monotonic() < deadline and not self.commits.store.exists(commit_path(release.release)):
            time.sleep(0.2)
        self.commits.create(Commit(commit=release.release, kind="void", committed_at=utc_now()))
        return False

    def _store_manifest(self, release: ReleaseManifest) -> bool:
        """Store the manifest. Returns False if another run has stored one under this number.

        Commits are in another store if this one cannot create a file only once. Then a claim file beside the
        commits decides which run has the number: it contains the manifest's digest.
        """
        path, content = manifest_path(release.release), release.to_json()
        commits = self.commits.store
        if commits is self.store:
            return self.store.create(path, content) or self.store.read(path) == content
        digest = sha256(content).hexdigest().encode()
        claim = commit_path(release.release).replace(".json", ".claim")
        if not commits.create(claim, digest) and commits.read(claim) != digest:
            return False
        self.store.write(path, content)
        return True


def no_release(store: Store, remedy: str = "run manta nightly first, or check the root") -> DataError:
    """Return the error that a root has no release; it names the roots in the folder, if there are any."""
    if below := roots_below(store):
        remedy = f"name a root below it: {', '.join(below[:_SHOWN_ROOTS])}"
    return DataError(store.uri, "a published release", "none", remedy)


def roots_below(store: Store) -> list[str]:
    """Return the paths of the roots in a folder; none for a store of objects, or a folder that is missing."""
    if not isinstance(store, LocalStore):
        return []
    with contextlib.suppress(OSError):  # a missing or unreadable folder
        return sorted(str(child) for child in Path(store.uri).iterdir() if (child / "commits").is_dir())
    return []
