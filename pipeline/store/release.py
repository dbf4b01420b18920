"""Releases: immutable snapshots with a number, made current by a commit that is created once. Nothing that is published ever changes."""

import re
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from hashlib import sha256
from itertools import chain
from pathlib import PurePosixPath
from typing import Any, Literal, TypeVar

from pipeline.config import digest_of
from pipeline.errors import DataError, PublishConflict, TransientError
from pipeline.log import say
from pipeline.store.store import Store
from pipeline.store.units import Corpus, FileRef, Stored

OUTSIDE_RECALL = "recall_at_10_queries"         # the gate that tells of gates.queries and refuses nothing

A = TypeVar("A")
B = TypeVar("B")

_THREADS = 16       # requests at once: an object store answers each in tens of milliseconds
_COMMIT = re.compile(r"commits/([0-9]{8})\.json")
_GRACE_S = 10.0     # a publisher creates its commit milliseconds after its manifest; one that has not by now was stopped in between


class ReleaseUnit(Stored):
    """One unit of vectors in a release. Its rows' addresses are ordinal << 32 | row of the corpus unit; rows are counted with the dead ones."""

    ordinal: int
    path: str
    rows: int
    bytes: int = 0
    sha256: str
    space_id: str
    numerics_id: str
    copied: dict[str, int] = {}
    """of the rows, those copied from units of another arithmetic, by its numerics_id"""
    corpus: FileRef
    """the unit's texts"""
    dropped: tuple[int, ...] = ()
    """rows of the corpus unit without a vector"""
    moments: FileRef | None = None
    record: str
    """path of the unit's record"""
    quarantine: FileRef | None = None
    """rows whose vector was unusable"""


class IndexFiles(Stored):
    kind: str
    factory: str
    dim: int
    metric: str = "inner_product"
    parts: int = 1
    files: tuple[FileRef, ...]
    settings: dict[str, Any] = {}
    """nprobe, nlist, fingerprint of the trained quantizer ..."""
    base_ordinals: int = 0
    """rows of units with an ordinal below this lie in the first part, those of later units in the second"""
    delta_ids: int = 0
    """how many of the release's files of ids, the last ones, are of the second part"""
    trained: FileRef | None = None
    """the empty index that every part was filled from"""
    trained_on: dict[str, float | int | None] = {}
    """rows, imbalance and recall_at_10 when it was trained: what later nights are compared with"""
    queries: FileRef | None = None
    """rows that recall is measured with: addresses and raw vectors"""
    truth: FileRef | None = None
    """their exact neighbours among the live rows"""


class Choice(Stored):
    """One thing that a night decided, and why. what: corpus, encoder, whitening, index ...; numbers: what it was decided by, bounds included."""

    what: str
    chosen: str
    sentence: str
    numbers: dict[str, float | int | None] = {}


class Gate(Stored):
    value: float | int | None
    threshold: float | int | None
    passed: bool
    relation: Literal["at least", "at most", "exactly"] = "at least"
    sentence: str = ""


class Whitened(Stored):
    """What was decided about whitening, and on what: later nights keep it until the vectors have drifted from those."""

    fitted: FileRef | None = None
    """the transform, used or not"""
    fitted_on: FileRef
    """moments of the live rows of that night"""
    used: bool
    sentence: str


class EncoderFiles(Stored):
    """The release's own copy of its encoder folder."""

    path: str
    files: tuple[FileRef, ...]


class ReleaseManifest(Stored):
    """Everything a reader or the next night needs, by content. All paths are relative to the root."""

    schema_version: int = 1
    release: int = 0
    """0 while it is a candidate"""
    parent: int | None = None
    space_id: str
    transform_id: str | None = None
    transform: FileRef | None = None
    whitening: Whitened | None = None
    moments: FileRef | None = None
    """of the live rows"""
    canary: FileRef | None = None
    """vectors of the canary texts"""
    numerics: dict[str, int]
    rows: int
    units: tuple[ReleaseUnit, ...]
    next_ordinal: int
    dead: FileRef | None = None
    """rows that the units hold and that are not live (Parquet, column address)"""
    tombstones: FileRef | None = None
    """those of them that the index still holds; null where it holds live rows only"""
    index: IndexFiles
    ids: tuple[FileRef, ...]
    encoder: EncoderFiles
    corpus: FileRef
    gates: dict[str, Gate] = {}
    choices: tuple[Choice, ...] = ()
    counts: dict[str, int] = {}
    settings: dict[str, Any] = {}
    packages: dict[str, str] = {}

    @property
    def id(self) -> str:
        """sha256 of the content but for its number: what a candidate is named by."""
        return digest_of(self.model_dump(mode="json", exclude={"release"}))

    def paths(self) -> set[str]:
        """Every file that this release needs, its own manifest and the corpus record's files excepted."""
        single = [ref.path for ref in (self.transform, self.moments, self.canary, self.dead, self.tombstones, self.corpus) if ref]
        single += [ref.path for ref in (self.whitening.fitted, self.whitening.fitted_on) if ref] if self.whitening else []
        single += [ref.path for ref in (self.index.trained, self.index.queries, self.index.truth) if ref]
        units = [path for unit in self.units for path in (unit.path, unit.record, unit.corpus.path)]
        units += [ref.path for unit in self.units for ref in (unit.moments, unit.quarantine) if ref]
        groups = [ref.path for ref in (*self.index.files, *self.ids)]
        return {*single, *units, *groups, *(f"{self.encoder.path}/{ref.path}" for ref in self.encoder.files)}


class Commit(Stored):
    """Says that from now on `release` is current; a void commit only uses up its number."""

    commit: int
    kind: Literal["publish", "rollback", "void"]
    release: int | None = None
    manifest: str | None = None
    sha256: str | None = None
    committed_at: str = ""


class Releases:
    """The releases below one root. Readers take the highest commit whose manifest exists and matches."""

    def __init__(self, store: Store, commits: Store | None = None) -> None:
        self.store = store
        self.commits = commits or store

    def __repr__(self) -> str:
        return f"Releases({self.store!r}{f', {self.commits!r}' if self.commits is not self.store else ''})"

    def history(self) -> list[Commit]:
        """Commits in order of number, void and unreadable ones left out."""
        read = _at_once(self._commit, self._commit_numbers())
        return [commit for commit in read if commit is not None and commit.kind != "void"]

    def current(self) -> ReleaseManifest | None:
        """The release that is live; None before the first. One whose manifest was changed is passed over, in words."""
        for commit in self._latest_first():
            try:
                if found := self._content(commit):
                    return ReleaseManifest.from_json(found, self.store.uri_of(str(commit.manifest)))
            except _Changed as changed:
                say(f"release {commit.release} is passed over: {changed}")
        return None

    def get(self, number: int) -> ReleaseManifest:
        """Release `number`, checked against its commit."""
        return self._committed(number)[1]

    def _committed(self, number: int) -> tuple[Commit, ReleaseManifest]:
        """Release `number` and a commit of it: its own, which has its number, or a rollback to it."""
        for commit in chain([self._commit(number)], self._latest_first()):
            if commit is not None and commit.release == number and (content := self._content(commit)):
                return commit, ReleaseManifest.from_json(content, self.store.uri_of(str(commit.manifest)))
        kept = ", ".join(str(release) for release in self.numbers()) or "none"
        raise DataError(f"{self.store.uri}: release {number}", "a committed release", "none of that number", f"there are: {kept}")

    def numbers(self) -> list[int]:
        """Numbers of the committed releases that are still there."""
        committed = sorted({commit.release for commit in self.history() if commit.release is not None})
        there = _at_once(lambda number: self.store.exists(manifest_path(number)), committed)
        return [number for number, is_there in zip(committed, there, strict=True) if is_there]

    def next_ordinal(self) -> int:
        """The first ordinal that no release has used; 0 without any. They grow with releases' numbers, past a rollback too: no address is given to another row.

        A number that was reserved and not committed has used none: the same night, started again, gets the same addresses.
        """
        paths = (manifest_path(number) for number in reversed(self.numbers()))
        return next((found.next_ordinal for path in paths if (found := self._readable(path))), 0)

    def publish(self, candidate: ReleaseManifest, report: Callable[[int], str]) -> ReleaseManifest:
        """The candidate with its number, live. `report(number)` is its HTML.

        Of two racing publishers exactly one wins: the number of the commit is what both want, and it is created once.
        PublishConflict when another run has published since `candidate.parent`, TransientError when a file of the candidate is gone;
        then nothing was changed.
        """
        number = self._last_number() + 1
        while True:
            self._refuse_if_overtaken(candidate)
            self._refuse_if_pruned(candidate)
            release = candidate.model_copy(update={"release": number})
            if self._reserve(release) and self._commit_release(number, release, report):
                return release
            number += 1

    def rollback(self, number: int) -> Commit:
        """Make the older release `number` current again by a new commit."""
        published, _ = self._committed(number)
        while True:
            commit = published.model_copy(update={"commit": self._last_number() + 1, "kind": "rollback", "committed_at": _now()})
            if self.commits.create(commit_path(commit.commit), commit.to_json()):
                return commit

    def _reserve(self, release: ReleaseManifest) -> bool:
        """Whether the number is ours. One that another run reserved and does not commit within the grace time is made void, so it can never commit late."""
        if self._is_reserved(manifest_path(release.release), release):
            return True
        deadline = time.monotonic() + _GRACE_S
        while time.monotonic() < deadline and not self.commits.exists(commit_path(release.release)):
            time.sleep(0.2)
        void = Commit(commit=release.release, kind="void", committed_at=_now())
        self.commits.create(commit_path(release.release), void.to_json())
        return False

    def _is_reserved(self, path: str, release: ReleaseManifest) -> bool:
        """Whether the manifest of that number is this release's. Where commits lie apart, because the store has no create-once, they settle that too."""
        content = release.to_json()
        if self.commits is self.store:
            return self.store.create(path, content) or self.store.read(path) == content
        mine, claim = sha256(content).hexdigest().encode(), commit_path(release.release).replace(".json", ".claim")
        if not self.commits.create(claim, mine) and self.commits.read(claim) != mine:
            return False
        self.store.write(path, content)
        return True

    def _commit_release(self, number: int, release: ReleaseManifest, report: Callable[[int], str]) -> bool:
        self.store.write(f"releases/{number:08d}/report.html", report(number).encode())
        content = sha256(release.to_json()).hexdigest()
        commit = Commit(commit=number, kind="publish", release=number, manifest=manifest_path(number), sha256=content, committed_at=_now())
        return self.commits.create(commit_path(number), commit.to_json())

    def _refuse_if_overtaken(self, candidate: ReleaseManifest) -> None:
        current = self.current()
        if current is not None and current.release != candidate.parent:
            raise PublishConflict(number=current.release, winner=current.id)

    def _refuse_if_pruned(self, candidate: ReleaseManifest) -> None:
        if missing := missing_file(self.store, candidate):
            expected, found = "a file that the new release needs", "none: a prune ran beside this night"
            raise TransientError(self.store.uri_of(missing), expected, found, "run again: what is gone is made again")

    def _last_number(self) -> int:
        """The highest number ever committed, void ones included."""
        return max(self._commit_numbers(), default=0)

    def _commit_numbers(self) -> list[int]:
        """Ascending; what else lies beside the commits is not ours."""
        found = (_COMMIT.fullmatch(entry.path) for entry in self.commits.list("commits", ".json"))
        return sorted(int(match[1]) for match in found if match)

    def _latest_first(self) -> Iterator[Commit]:
        """Each is read when it is asked for: the first few answer nearly every question."""
        read = (self._commit(number) for number in reversed(self._commit_numbers()))
        return (commit for commit in read if commit is not None)

    def _commit(self, number: int) -> Commit | None:
        try:
            return Commit.load(self.commits, commit_path(number))
        except DataError:                           # cut off in the middle on a file system without hard links: it never took effect
            return None

    def _readable(self, path: str) -> ReleaseManifest | None:
        try:
            return ReleaseManifest.load(self.store, path)
        except DataError:                           # damaged: `current` passes it over, so nobody reads its units by ordinal
            return None

    def _content(self, commit: Commit) -> bytes | None:
        """The manifest that was committed; None when it was pruned, or for a void commit."""
        if commit.manifest is None or commit.sha256 is None:
            return None
        try:
            content = self.store.read(commit.manifest)
        except FileNotFoundError:                   # pruned
            return None
        if (found := sha256(content).hexdigest()) != commit.sha256:
            where, remedy = self.store.uri_of(commit.manifest), "it was changed after it was published: restore it, or roll back to another release"
            raise _Changed(where, f"sha256 {commit.sha256[:16]}...", f"{found[:16]}...", remedy)
        return content


class _Changed(DataError):
    """A manifest is not the one that was committed."""


def files_of(store: Store, manifest: ReleaseManifest) -> set[str]:
    """Every file that the release needs, those of its corpus record included, its own manifest excepted."""
    try:
        content = store.read_checked(manifest.corpus.path, manifest.corpus.sha256)
    except FileNotFoundError:
        return manifest.paths()
    return manifest.paths() | Corpus.from_json(content, store.uri_of(manifest.corpus.path)).paths()


def missing_file(store: Store, manifest: ReleaseManifest) -> str | None:
    """One file that the release needs and that is not there. By listings: a large corpus has tens of thousands of files."""
    needed = files_of(store, manifest)
    folders = sorted({str(PurePosixPath(path).parent) for path in needed} - {"."})
    listed = {entry.path for entries in _at_once(store.list, folders) for entry in entries}
    return next((path for path in sorted(needed - listed) if not store.exists(path)), None)


def _at_once(call: Callable[[A], B], of: Iterable[A]) -> list[B]:
    """call(each), in order."""
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(call, of))


def manifest_path(number: int) -> str:
    return f"releases/{number:08d}/manifest.json"


def commit_path(number: int) -> str:
    return f"commits/{number:08d}.json"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
