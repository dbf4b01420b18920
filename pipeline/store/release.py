"""Releases: immutable snapshots with a number, made current by a commit that is created once. Nothing that is published ever changes."""

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from itertools import chain
from typing import Literal, TypeVar

from pipeline.errors import ConfigError, DataError, PublishConflict, RootHeld, TransientError
from pipeline.log import say
from pipeline.store.base import Store
from pipeline.store.commits import Commit, Commits, commit_path, now
from pipeline.store.manifest import ReleaseManifest, manifest_path
from pipeline.store.units import OtherSchema
from pipeline.store.verify import size_faults

A = TypeVar("A")
B = TypeVar("B")

_THREADS = 16  # requests at once: an object store answers each in tens of milliseconds
_GRACE_S = 10.0  # a publisher creates its commit milliseconds after its manifest; one that has not by now was stopped in between


class Releases:
    """The releases below one root. Readers take the highest commit whose manifest exists and matches."""

    def __init__(self, store: Store, commits: Store | None = None) -> None:
        self.store = store
        self.commits = Commits(commits or store)

    def __repr__(self) -> str:
        return f"Releases({self.store!r}{f', {self.commits!r}' if self.commits is not self.store else ''})"

    def history(self) -> list[Commit]:
        """Commits in order of number, void and unreadable ones left out."""
        return self.commits.history()

    def current(self) -> ReleaseManifest | None:
        """The release that is live; None before the first. One whose manifest was changed is passed over, in words."""
        numbers = self.commits.numbers()
        if damage := self.commits.damage(numbers):
            say(f"the highest commit is taken as it is, though the sequence is damaged: {damage}")
        for number in reversed(numbers):
            if (commit := self.commits.read(number)) is None:
                where = self.commits.store.uri_of(commit_path(number))
                say(f"{where} is passed over: it is damaged, or was cut off before it took effect")
                continue
            try:
                if found := self._content(commit):
                    return ReleaseManifest.from_json(found, self.store.uri_of(str(commit.manifest)))
            except _Changed as changed:
                say(f"release {commit.release} is passed over: {changed}")
        return None

    def get(self, number: int) -> ReleaseManifest:
        """Release `number`, checked against its commit."""
        return self._committed(number)[1]

    def chosen(self, number: int | None) -> ReleaseManifest:
        """Release `number`, or the current one. DataError where there is none."""
        manifest = self.current() if number is None else self.get(number)
        if manifest is None:
            raise DataError(
                self.store.uri, "a published release", "none", "run manta nightly first, or check the root"
            )
        return manifest

    def _committed(self, number: int) -> tuple[Commit, ReleaseManifest]:
        """Release `number` and a commit of it: its own, which has its number, or a rollback to it."""
        for commit in chain([self.commits.read(number)], self.commits.newest_first()):
            if commit is not None and commit.release == number and (content := self._content(commit)):
                return commit, ReleaseManifest.from_json(content, self.store.uri_of(str(commit.manifest)))
        kept = ", ".join(str(release) for release in self.numbers()) or "none"
        raise DataError(
            f"{self.store.uri}: release {number}",
            "a committed release",
            "none of that number",
            f"there are: {kept}",
        )

    def numbers(self) -> list[int]:
        """Numbers of the committed releases that are still there."""
        committed = sorted({commit.release for commit in self.history() if commit.release is not None})
        there = _at_once(lambda number: self.store.exists(manifest_path(number)), committed)
        return [number for number, is_there in zip(committed, there, strict=True) if is_there]

    def next_ordinal(self) -> int:
        """The first ordinal that no release has used; 0 without any. They grow with releases' numbers, past a rollback too: no address is given to another row.

        A number that was reserved and not committed has used none: the same night, started again, gets the same addresses.
        """
        used = sorted({*self.numbers(), *self.commits.damaged()})
        paths = (manifest_path(number) for number in reversed(used))
        return next((found.next_ordinal for path in paths if (found := self._readable(path))), 0)

    def publish(self, candidate: ReleaseManifest, report: Callable[[int], str]) -> ReleaseManifest:
        """The candidate with its number, live. `report(number)` is its HTML.

        Of two racing publishers exactly one wins: the number of the commit is what both want, and it is created once.
        PublishConflict when another run has published since `candidate.parent`, RootHeld while the root is held, TransientError when a file of the
        candidate is gone; then nothing was changed.
        """
        number = self.commits.next_number()
        while True:
            self._refuse_if_held()
            self._refuse_if_overtaken(candidate)
            self._refuse_if_pruned(candidate)
            release = candidate.model_copy(update={"release": number})
            if self._reserve(release) and self._commit_release(number, release, report):
                return release
            number += 1

    def rollback(self, number: int) -> Commit:
        """Make the older release `number` current again by a new commit. ConfigError while the root is held."""
        published, _ = self._committed(number)
        while True:
            self._refuse_change(number)
            if commit := self._appended(published, "rollback"):
                return commit

    def hold(self, number: int | None = None, reason: str = "") -> Commit:
        """Keep release `number`, without one the current release, current until `unhold`.

        A release that is held already stays held by its own commit. The hold takes a number of the sequence: a night
        that is about to publish finds the number taken, and then the hold.
        DataError without a release; ConfigError while another release is held.
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
        """End the hold: the next night publishes again. None where nothing was held."""
        while (held := self.commits.hold()) is not None:
            if commit := self._appended(held, "unhold"):
                return commit
        return None

    def _appended(
        self, of: Commit, kind: Literal["rollback", "hold", "unhold"], reason: str = ""
    ) -> Commit | None:
        """The release of commit `of`, committed again; None when another commit took the number."""
        update = {"commit": self.commits.next_number(), "kind": kind, "committed_at": now(), "reason": reason}
        commit = of.model_copy(update=update)
        return commit if self.commits.create(commit) else None

    def _refuse_change(self, number: int) -> None:
        """ConfigError where release `number` cannot become current, because the root is held."""
        if held := self.commits.hold():
            found = f"release {held.release} held since {held.committed_at}"
            remedy = f"end the hold first: manta releases release {self.store.uri}"
            raise ConfigError(f"{self.store.uri}: release {number}", "a root that is not held", found, remedy)

    def _refuse_if_held(self) -> None:
        if held := self.commits.hold():
            raise RootHeld(int(held.release or 0), held.committed_at, self.store.uri, held.reason)

    def _reserve(self, release: ReleaseManifest) -> bool:
        """Whether the number is ours. One that another run reserved and does not commit within the grace time is made void, so it can never commit late."""
        if self._is_reserved(manifest_path(release.release), release):
            return True
        deadline = time.monotonic() + _GRACE_S
        while time.monotonic() < deadline and not self.commits.store.exists(commit_path(release.release)):
            time.sleep(0.2)
        self.commits.create(Commit(commit=release.release, kind="void", committed_at=now()))
        return False

    def _is_reserved(self, path: str, release: ReleaseManifest) -> bool:
        """Whether the manifest of that number is this release's. Where commits lie apart, because the store has no create-once, they settle that too."""
        content = release.to_json()
        commits = self.commits.store
        if commits is self.store:
            return self.store.create(path, content) or self.store.read(path) == content
        mine, claim = (
            sha256(content).hexdigest().encode(),
            commit_path(release.release).replace(".json", ".claim"),
        )
        if not commits.create(claim, mine) and commits.read(claim) != mine:
            return False
        self.store.write(path, content)
        return True

    def _commit_release(self, number: int, release: ReleaseManifest, report: Callable[[int], str]) -> bool:
        self.store.write(f"releases/{number:08d}/report.html", report(number).encode())
        content = sha256(release.to_json()).hexdigest()
        commit = Commit(
            commit=number,
            kind="publish",
            release=number,
            manifest=manifest_path(number),
            sha256=content,
            committed_at=now(),
        )
        return self.commits.create(commit)

    def _refuse_if_overtaken(self, candidate: ReleaseManifest) -> None:
        current = self.current()
        if current is not None and current.release != candidate.parent:
            raise PublishConflict(number=current.release, winner=current.id)

    def _refuse_if_pruned(self, candidate: ReleaseManifest) -> None:
        if gone := [fault for fault in size_faults(self.store, candidate) if fault.missing]:
            expected, found = "a file that the new release needs", "none: a prune ran beside this night"
            raise TransientError(
                self.store.uri_of(gone[0].path), expected, found, "run again: what is gone is made again"
            )

    def _readable(self, path: str) -> ReleaseManifest | None:
        try:
            return ReleaseManifest.load(self.store, path)
        except OtherSchema:  # its ordinals are used, and unknown
            raise
        except DataError:  # damaged: `current` passes it over, so nobody reads its units by ordinal
            return None

    def _content(self, commit: Commit) -> bytes | None:
        """The manifest that was committed; None when it was pruned, or for a void commit."""
        if commit.manifest is None or commit.sha256 is None:
            return None
        try:
            content = self.store.read(commit.manifest)
        except FileNotFoundError:  # pruned
            return None
        if (found := sha256(content).hexdigest()) != commit.sha256:
            where, remedy = (
                self.store.uri_of(commit.manifest),
                "it was changed after it was published: restore it, or roll back to another release",
            )
            raise _Changed(where, f"sha256 {commit.sha256[:16]}...", f"{found[:16]}...", remedy)
        return content


class _Changed(DataError):
    """A manifest is not the one that was committed."""


def _at_once(call: Callable[[A], B], of: Iterable[A]) -> list[B]:
    """call(each), in order."""
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(call, of))
