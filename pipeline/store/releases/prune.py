"""Remove old releases, old manifests of augmented corpora, and the files that only these need."""

import heapq
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from pipeline.errors import ConfigError, TransientError
from pipeline.log import announce
from pipeline.store.files.base import Entry, Store, in_threads
from pipeline.store.files.check_store import clock
from pipeline.store.files.lease import PRUNE, SERVED, active_leases, describe, holders, is_lease, lease
from pipeline.store.records.augmented import AUGMENTED_FOLDER, Series, list_series
from pipeline.store.records.sealed_json import Stored
from pipeline.store.releases.commits import ERASURES, commit_path
from pipeline.store.releases.erasures import refuse_during_erasure
from pipeline.store.releases.manifest import ReleaseManifest, manifest_path, report_path
from pipeline.store.releases.release import Releases
from pipeline.store.releases.summary import summary_path
from pipeline.store.releases.verify import needed_files
from pipeline.store.releases.waiting import WAITING, commits_since, is_overtaken, load_waiting

_EXPORTS = "exports"  # exports/ has leases of exports, and whatever users export to that folder

OWN_FOLDERS = (
    "units",
    "keys",
    "moments",
    "relevance",
    "transforms",
    "indexes",
    "ids",
    "encoders",
    "quarantine",
    "candidates",
    "releases",
    AUGMENTED_FOLDER,
)
"""folders whose unneeded files are removed; other folders, such as evaluations/, are kept"""
_PRUNED_FOLDERS = (*OWN_FOLDERS, _EXPORTS, SERVED, "duplicates/leases")

_SAMPLES = 10  # files shown to the user


class Pruned(Stored):
    """The files that prune removed, or would remove in a dry run."""

    kept: tuple[int, ...]
    """numbers of the releases that are kept"""
    removed: tuple[int, ...]
    """numbers of the releases that are removed"""
    files: int
    bytes: int
    dry_run: bool = False
    folders: dict[str, int] = {}
    """bytes by top folder"""
    samples: dict[str, int] = {}
    """bytes of the largest files, by path"""


def prune(
    releases: Releases,
    keep: int,
    *,
    grace_s: float = 24 * 3600.0,
    ignore_leases: bool = False,
    dry_run: bool = False,
) -> Pruned:
    """Remove old releases and manifests of augmented corpora, and the files that only these need.

    A lease shows other commands that prune is running: no release that it removes becomes current meanwhile.
    Releases whose commits are damaged keep their files, and so do releases that a service serves. Everything
    below evaluations/ is kept, because later evaluations reuse it.

    Args:
        keep: how many releases to keep (those that were current most recently), and how many manifests of
            each augmented corpus.
        grace_s: age in seconds below which a file that no release names is kept: a running night may need it.
        ignore_leases: run even if another command holds a lease, or a service serves a release.
        dry_run: report the files without removing them.

    Raises:
        TransientError: a night, an erasure, an export or a search for duplicates is running, and may need
            files that no kept release needs; or a release is being made current; or a service's lease names
            no release.
        DataError: the current release is unknown, because the newest commit is damaged; or a commit is
            missing, so that its release would lose its files; or the files of the candidate that waits are
            unknown.
    """
    settings = _Settings(keep, grace_s, ignore_leases, dry_run)
    if dry_run:
        return _prune(releases, settings, None)
    with lease(releases.store, command=PRUNE) as own:
        return _prune(releases, settings, own)


class _Settings(NamedTuple):
    """The arguments of `prune`."""

    keep: int
    grace_s: float
    ignore_leases: bool
    dry_run: bool


def _prune(releases: Releases, settings: _Settings, own: str | None) -> Pruned:
    """Implement `prune`; `own` is the path of its lease, None in a dry run."""
    keep, grace_s, ignore_leases, dry_run = settings
    store, series = releases.store, list_series(releases.store)
    numbers = releases.commits.numbers()
    if error := releases.commits.sequence_error(numbers):
        raise error
    _refuse_damaged(releases, max(numbers, default=0))
    now = _now(store, dry_run=dry_run)
    if not ignore_leases:
        refuse_during_erasure(store)
        refuse_if_leased(store, series, now, own)
    # before the commits are read, because a candidate may be promoted meanwhile
    candidates = _paths_of_candidates(releases, now, ignore_leases=ignore_leases)
    recent = _recently_current(releases)
    leases, served = ([], set[int]()) if ignore_leases else served_releases(store, now)
    kept = {*recent[:keep], *served}
    needed, named_by_old = _divide_paths(releases, series, kept, keep)
    needed.add([*leases, *filter(None, [own]), *candidates])
    rule, removed = _Rule(needed, named_by_old, now - grace_s), _RemovalSums()
    # Records go first, so that no record is ever stored without its unit.
    for is_record in (True, False):
        for page in _pruned_pages(store):
            files = rule.files_to_remove(page)
            files = [entry for entry in files if entry.path.endswith(".json") == is_record]
            removed.add(files)
            if files and not dry_run:
                in_threads(store.delete, [entry.path for entry in files])
    swept_bytes = 0 if dry_run else store.sweep(rule.cutoff)
    return Pruned(
        kept=tuple(sorted(kept & set(recent))),
        removed=tuple(sorted(set(recent) - kept)),
        files=removed.files,
        bytes=sum(removed.folders.values()) + swept_bytes,
        dry_run=dry_run,
        folders=dict(removed.folders),
        samples={entry.path: entry.size for entry in removed.largest},
    )


def _now(store: Store, *, dry_run: bool) -> float:
    """Return the store's time; in a dry run, this machine's if the store cannot be written."""
    try:
        return clock(store)
    except ConfigError as error:
        if not dry_run:
            raise
        announce(f"ages are measured by the clock of this machine, because no file can be written: {error}")
        return time.time()


def _pruned_pages(store: Store) -> Iterator[list[Entry]]:
    """Yield pages of the files that may be removed.

    Users may have files below exports/ and served/, so only leases are yielded there.
    """
    for folder in _PRUNED_FOLDERS:
        for page in store.pages(folder):
            yield [entry for entry in page if folder not in (_EXPORTS, SERVED) or is_lease(entry.path)]


class _PathSet:
    """A set of paths, stored as their hashes of eight bytes.

    If the set has a million paths, `contains` is wrong about a path outside it with a probability of 10^-13.
    """

    def __init__(self) -> None:
        self._hashes = np.zeros(0, dtype=np.int64)

    def add(self, paths: Iterable[str]) -> None:
        """Add paths."""
        self._hashes = np.union1d(self._hashes, _hashes(paths))

    def contains(self, paths: Sequence[str]) -> np.ndarray:
        """Return a mask (n,) of the paths: True for those in the set."""
        hashes = _hashes(paths)
        if not len(self._hashes):
            return np.zeros(len(hashes), dtype=bool)
        positions = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
        return np.asarray(self._hashes[positions] == hashes)


def _hashes(paths: Iterable[str]) -> np.ndarray:
    return np.fromiter(map(hash, paths), dtype=np.int64)


class _Rule(NamedTuple):
    """Which files are removed: those that no kept release needs, if an old release names them or they are
    old.
    """

    needed: _PathSet
    named_by_old: _PathSet
    cutoff: float
    """seconds since 1970"""

    def files_to_remove(self, entries: Sequence[Entry]) -> list[Entry]:
        """Select the files to remove."""
        paths = [entry.path for entry in entries]
        is_old = np.array([entry.modified < self.cutoff for entry in entries], dtype=bool)
        chosen = ~self.needed.contains(paths) & (self.named_by_old.contains(paths) | is_old)
        return [entries[number] for number in np.flatnonzero(chosen).tolist()]


@dataclass
class _RemovalSums:
    """Sums over the files that are removed."""

    files: int = 0
    folders: Counter[str] = field(default_factory=Counter)
    """bytes by top folder"""
    largest: list[Entry] = field(default_factory=list)

    def add(self, entries: Sequence[Entry]) -> None:
        """Count files."""
        self.files += len(entries)
        for entry in entries:
            self.folders[entry.path.partition("/")[0]] += entry.size
        self.largest = heapq.nlargest(_SAMPLES, [*self.largest, *entries], key=lambda entry: entry.size)


def _refuse_damaged(releases: Releases, newest: int) -> None:
    """Raise DataError if a damaged commit may decide which release is current, or which files releases have.

    Args:
        newest: number of the newest commit.
    """
    if not releases.store.exists(manifest_path(newest)):
        releases.commits.read_or_raise(newest)  # raises for a damaged rollback or hold, which has no manifest
    if releases.store.list(ERASURES):  # a damaged erasure may have named the manifests of other releases
        for number in releases.commits.unreadable():
            releases.commits.read_or_raise(number)


def refuse_if_leased(
    store: Store, series: Sequence[Series], now: float, own: str | None = None, command: str = "prune"
) -> None:
    """Raise TransientError, which shows the lease, if a running command needs files of the root."""
    folders = ("candidates", _EXPORTS, "duplicates/leases", *(corpus.folder for corpus in series))
    for entry in (entry for folder in folders for entry in active_leases(store, now, folder)):
        if entry.path == own:
            continue
        try:
            holder = store.read(entry.path).decode()
        except FileNotFoundError:  # the command has just ended
            continue
        raise TransientError(
            f"{store.uri}: {command}",
            "no running night, export or search for duplicates",
            f"{entry.path}: {holder}",
            f"run {command} after that command has ended; the lease of a killed one expires after 20 "
            "minutes, or pass --ignore-leases",
        )


def served_releases(store: Store, now: float) -> tuple[list[str], set[int]]:
    """Return the paths of the leases of services and copies, and the releases that these read.

    Raises:
        TransientError: a lease does not say which release it is for.
    """
    leases, served = list[str](), set[int]()
    for path, holder in holders(store, SERVED, now):
        numbers = (holder or {}).get("releases", [(holder or {}).get("release")])
        if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
            raise TransientError(
                store.uri_of(path),
                "a lease that names the release of a service",
                "another content",
                "delete this file if no service uses the root, or pass --ignore-leases",
            )
        assert holder is not None
        leases.append(path)
        if not served.issuperset(numbers):
            is_one = len(numbers) == 1
            kept = f"release {numbers[0]} is" if is_one else f"releases {', '.join(map(str, numbers))} are"
            use = "it is served" if is_one else "they are copied"
            announce(f"{kept} kept as long as {use}: {describe(holder)}")
        served.update(numbers)
    return leases, served


def _divide_paths(
    releases: Releases, series: Sequence[Series], kept: set[int], keep: int
) -> tuple[_PathSet, _PathSet]:
    """Return the paths that kept releases and manifests need, and the paths that removed ones name.

    Args:
        kept: numbers of the kept releases.
        keep: number of kept manifests of each augmented corpus.
    """
    needed, named_by_old = _PathSet(), _PathSet()
    for number in _recently_current(releases):
        (needed if number in kept else named_by_old).add(_paths(releases, releases.get(number)))
    for number in releases.commits.unreadable():
        needed.add(_paths_of_damaged(releases, number))
    for corpus in series:
        for position, number in enumerate(reversed(corpus.numbers())):
            (needed if position < keep else named_by_old).add(corpus.files(number))
    return needed, named_by_old


def _recently_current(releases: Releases) -> list[int]:
    """Return the numbers of the stored releases, most recently current first."""
    commits = reversed(releases.history())
    recent = dict.fromkeys(commit.release for commit in commits if commit.release is not None)
    paths = releases.manifest_paths(recent)
    return [number for number, path in paths.items() if releases.store.exists(path)]


def _paths_of_damaged(releases: Releases, number: int) -> Iterator[str]:
    """Yield the paths of the files of release `number`, whose commit cannot be read; none without a manifest.

    Raises:
        DataError: the manifest of the release is damaged too.
    """
    manifest = ReleaseManifest.load(releases.store, releases.manifest_paths([number])[number])
    if manifest is None:
        return
    where = releases.commits.store.uri_of(commit_path(number))
    announce(
        f"{where} cannot be read: the files of release {number} are kept; restore the commit from a copy"
    )
    yield from _paths(releases, manifest)


def _paths_of_waiting(releases: Releases) -> list[str]:
    """Return the paths of the files of the candidate that waits for its approval; none without one.

    Raises:
        DataError: its record or its manifest is damaged or missing, so that its files are unknown.
    """
    store, record = releases.store, load_waiting(releases.store)
    if record is None or is_overtaken(commits_since(releases.commits, record)):
        return []
    announce(f"candidate {record.candidate} is kept: it has waited for its approval since {record.at}")
    own = (entry.path for entry in store.list(record.folder))
    return [WAITING, *own, *_paths(releases, record.load_manifest(store))]


def _paths_of_candidates(releases: Releases, now: float, *, ignore_leases: bool) -> list[str]:
    """Return the paths of the files of the candidate that waits, and of candidates that services use as
    shadows, by their leases.

    Raises:
        DataError: the record or the manifest of a candidate is damaged or missing.
    """
    paths = _paths_of_waiting(releases)
    for _, holder in () if ignore_leases else holders(releases.store, SERVED, now):
        path = (holder or {}).get("candidate")
        if isinstance(path, str) and (manifest := ReleaseManifest.load(releases.store, path)):
            announce(f"the candidate of {path} is kept as long as it is a shadow: {describe(holder or {})}")
            paths += [path, *_paths(releases, manifest)]
    return paths


def _paths(releases: Releases, manifest: ReleaseManifest) -> Iterator[str]:
    """Yield the paths of the files that the release needs, and of its whitened vectors."""
    number = manifest.release
    yield from (*releases.manifest_paths([number]).values(), report_path(number), summary_path(number))
    yield from (file.path for file in needed_files(releases.store, manifest))
    if manifest.transform_id:
        whitened = f"units/whitened/{manifest.transform_id[:16]}"
        yield from (entry.path for page in releases.store.pages(whitened) for entry in page)
