"""Releases: numbered, immutable snapshots, each made current by a commit that is created once."""

import time
from collections.abc import Callable, Sequence
from hashlib import sha256
from itertools import chain
from typing import Literal

from pipeline.errors import ConfigError, DataError, PublishConflict, RootHeld, TransientError
from pipeline.log import say
from pipeline.store.base import Store, in_threads
from pipeline.store.commits import Commit, Commits, commit_path, now
from pipeline.store.manifest import ReleaseManifest, manifest_path, report_path
from pipeline.store.stored import OtherSchema
from pipeline.store.verify import Fault, size_faults

# A publisher creates its commit milliseconds after its manifest; a longer gap means that it was stopped.
_GRACE_S = 10.0


class Releases:
    """The releases below one root. Readers take the highest commit whose manifest exists and matches."""

    def __init__(self, store: Store, commits: Store | None = None) -> None:
        self.store = store
        self.commits = Commits(commits or store)

    def __repr__(self) -> str:
        return f"Releases({self.store!r}{f', {self.commits!r}' if self.commits is not self.store else ''})"

    def history(self) -> list[Commit]:
        """List the commits in order of number, without void and unreadable ones."""
        return self.commits.history()

    def current(self) -> ReleaseManifest | None:
        """Return the current release; None before the first.

        A damaged commit, or a release whose manifest was changed or deleted, is skipped with a log line.
        """
        numbers = self.commits.numbers()
        if damage := self.commits.damage(numbers):
            say(f"the highest commit is used although the sequence is damaged: {damage}")
        for number in reversed(numbers):
            if (commit := self.commits.read(number)) is None:
                where = self.commits.store.uri_of(commit_path(number))
                say(f"{where} is skipped: it is damaged, or was truncated before it took effect")
                continue
            try:
                if found := self._content(commit):
                    return ReleaseManifest.from_json(found, self.store.uri_of(str(commit.manifest)))
            except _Changed as changed:
                say(f"release {commit.release} is skipped: {changed}")
            else:
                if commit.manifest is not None:
                    say(f"release {commit.release} is skipped: {self.store.uri_of(commit.manifest)} is gone")
        return None

    def get(self, number: int) -> ReleaseManifest:
        """Return release `number`. Raises DataError if it does not exist or differs from its commit."""
        return self._committed(number)[1]

    def chosen(self, number: int | None) -> ReleaseManifest:
        """Return release `number`, or the current one for None. Raises DataError if there is none."""
        manifest = self.current() if number is None else self.get(number)
        if manifest is None:
            raise DataError(
                self.store.uri, "a published release", "none", "run manta nightly first, or check the root"
            )
        return manifest

    def _committed(self, number: int) -> tuple[Commit, ReleaseManifest]:
        """Return release `number` and a commit of it: its own (of the same number) or a rollback to it."""
        for commit in chain([self.commits.read(number)], self.commits.newest_first()):
            if commit is not None and commit.release == number and (content := self._content(commit)):
                return commit, ReleaseManifest.from_json(content, self.store.uri_of(str(commit.manifest)))
        raise DataError(
            f"{self.store.uri}: release {number}",
            "a committed release",
            "none with this number",
            f"the existing releases are: {', '.join(map(str, self.numbers())) or 'none'}",
        )

    def numbers(self) -> list[int]:
        """List the numbers of the committed releases that were not pruned, ascending."""
        committed = sorted({commit.release for commit in self.history() if commit.release is not None})
        existing = in_threads(self.store.exists, map(manifest_path, committed))
        return [number for number, exists in zip(committed, existing, strict=True) if exists]

    def gone(self, history: Sequence[Commit]) -> dict[int, list[Fault]]:
        """Return, by release, its manifest and its report if they were deleted.

        Pruned releases are left out: prune deletes all files of their folders, and never the release of the
        newest commit.

        Args:
            history: result of `history()`.
        """
        stored = {entry.path for entry in self.store.list("releases")}
        committed = [commit.release for commit in history if commit.release is not None]
        found = {
            number: [
                Fault(path, f"a {kind}", None)
                for kind, path in (("manifest", manifest_path(number)), ("report", report_path(number)))
                if path not in stored
            ]
            for number in sorted(set(committed))
            if number == committed[-1] or any(path.split("/")[1] == f"{number:08d}" for path in stored)
        }
        return {number: faults for number, faults in found.items() if faults}

    def next_ordinal(self) -> int:
        """Return the first ordinal that no release has used; 0 without releases.

        Ordinals grow with release numbers, also after a rollback, so that no address is ever used for another
        row. Releases that were reserved and not committed do not count: a night that is started again gets
        the same addresses.
        """
        for number in sorted({*self.numbers(), *self.commits.damaged()}, reverse=True):
            try:
                if found := ReleaseManifest.load(self.store, manifest_path(number)):
                    return found.next_ordinal
            except OtherSchema:  # the release uses ordinals that this version cannot read
                raise
            except DataError:  # `current` skips a damaged release, so its ordinals are never read
                pass
        return 0

    def publish(self, candidate: ReleaseManifest, report: Callable[[int], str]) -> ReleaseManifest:
        """Make the candidate the current release.

        Exactly one of two racing publishers wins: both try to create the commit of the same number. After an
        error nothing was changed.

        Args:
            report: returns the HTML report for a release number.

        Returns:
            The manifest with its release number.

        Raises:
            PublishConflict: another run has published since `candidate.parent`.
            RootHeld: the root is held.
            TransientError: a file of the candidate is missing.
        """
        number = self.commits.next_number()
        while True:
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
                    committed_at=now(),
                )
                if self.commits.create(commit):
                    return release
            number += 1

    def rollback(self, number: int) -> Commit:
        """Make release `number` current again by a new commit. Raises ConfigError if the root is held."""
        published, _ = self._committed(number)
        while True:
            self._refuse_change(number)
            if commit := self._appended(published, "rollback"):
                return commit

    def hold(self, number: int | None = None, reason: str = "") -> Commit:
        """Keep a release current until `unhold`.

        A release that is held already stays held by its own commit. The hold takes a number of the sequence:
        a night that is about to publish finds the number taken, and then the hold.

        Args:
            number: the release; None holds the current one.

        Raises:
            DataError: there is no such release.
            ConfigError: another release is held.
        """
        while True:
            current = self.current() if number is None else None
            if number is None and current is None:
                raise DataError(self.store.uri, "a published release", "none", "run `manta nightly` first")
            wanted = current.release if current is not None else int(number or 0)
            published, _ = self._committed(wanted)
            if (held := self.commits.hold()) and held.release == wanted:
                return held
            self._refuse_change(wanted)
            if commit := self._appended(published, "hold", reason):
                return commit

    def unhold(self) -> Commit | None:
        """End the hold, so that the next night publishes again. Returns None if nothing was held."""
        while (held := self.commits.hold()) is not None:
            if commit := self._appended(held, "unhold"):
                return commit
        return None

    def _appended(
        self, of: Commit, kind: Literal["rollback", "hold", "unhold"], reason: str = ""
    ) -> Commit | None:
        """Commit the release of commit `of` once more. Returns None if another commit took the number."""
        commit = of.model_copy(
            update={
                "commit": self.commits.next_number(),
                "kind": kind,
                "committed_at": now(),
                "reason": reason,
            }
        )
        return commit if self.commits.create(commit) else None

    def _refuse_change(self, number: int) -> None:
        """Raise ConfigError if release `number` cannot become current because the root is held."""
        if held := self.commits.hold():
            raise ConfigError(
                f"{self.store.uri}: release {number}",
                "a root that is not held",
                f"release {held.release} held since {held.committed_at}",
                f"end the hold first: manta releases release {self.store.uri}",
            )

    def _check_publishable(self, candidate: ReleaseManifest) -> None:
        if held := self.commits.hold():
            raise RootHeld(int(held.release or 0), held.committed_at, self.store.uri, held.reason)
        current = self.current()
        if current is not None and current.release != candidate.parent:
            raise PublishConflict(number=current.release, winner=current.id)
        for fault in size_faults(self.store, candidate):
            if fault.missing:
                raise TransientError(
                    self.store.uri_of(fault.path),
                    "a file that the new release needs",
                    "no such file: prune ran during this night",
                    "run again: missing files are made again",
                )

    def _reserve(self, release: ReleaseManifest) -> bool:
        """Reserve the release's number. Returns False if another run has reserved it.

        If the other run does not commit within the grace time, a void commit takes the number, so that the
        run cannot commit later.
        """
        if self._is_reserved(manifest_path(release.release), release):
            return True
        deadline = time.monotonic() + _GRACE_S
        while time.monotonic() < deadline and not self.commits.store.exists(commit_path(release.release)):
            time.sleep(0.2)
        self.commits.create(Commit(commit=release.release, kind="void", committed_at=now()))
        return False

    def _is_reserved(self, path: str, release: ReleaseManifest) -> bool:
        """Store the manifest. Returns False if another run has stored one under this number.

        If the store has no create-once, commits are in another store, and a claim file beside them decides.
        """
        content = release.to_json()
        commits = self.commits.store
        if commits is self.store:
            return self.store.create(path, content) or self.store.read(path) == content
        digest = sha256(content).hexdigest().encode()
        claim = commit_path(release.release).replace(".json", ".claim")
        if not commits.create(claim, digest) and commits.read(claim) != digest:
            return False
        self.store.write(path, content)
        return True

    def _content(self, commit: Commit) -> bytes | None:
        """Return the manifest of a commit; None for a void commit, or if the release was pruned."""
        if commit.manifest is None or commit.sha256 is None:
            return None
        try:
            content = self.store.read(commit.manifest)
        except FileNotFoundError:  # pruned
            return None
        if (found := sha256(content).hexdigest()) != commit.sha256:
            raise _Changed(
                self.store.uri_of(commit.manifest),
                f"sha256 {commit.sha256[:16]}...",
                f"{found[:16]}...",
                "it was changed after it was published: restore it, or roll back to another release",
            )
        return content


class _Changed(DataError):
    """A manifest differs from the one that was committed."""
