"""Copy a root to another store: files, each compared by sha256, then manifests, and commits last.

Readers of the new root find no release or complete ones at every moment, also after a kill.
"""

import contextlib
import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import NamedTuple

from pipeline.errors import ConfigError, DataError, PipelineError, TransientError
from pipeline.log import Stages, announce
from pipeline.store.files.base import Store, in_threads, sha256_mismatch, sha256_of
from pipeline.store.files.check_store import check_store
from pipeline.store.files.lease import SERVED, is_lease, lease
from pipeline.store.records.augmented import AUGMENTED_FOLDER, list_series
from pipeline.store.releases.commits import ERASURES, Commit, Commits, commit_path
from pipeline.store.releases.erasures import refuse_during_erasure
from pipeline.store.releases.manifest import report_path
from pipeline.store.releases.release import Releases, no_release
from pipeline.store.releases.summary import summary_path
from pipeline.store.releases.verify import WHOLE_BYTES, needed_files, stored_sha256
from pipeline.store.releases.waiting import commits_since, is_overtaken, load_waiting

_COPIERS = 4  # files copied concurrently
_OTHER_FOLDERS = ("evaluations", "counts", "duplicates", AUGMENTED_FOLDER, "exports", ERASURES)
"""folders of files that no release names, and that a copy of the whole root has, too"""
_MADE_AGAIN = ("commits", "index.html")  # not counted as left out


class Copied(NamedTuple):
    """The result of a copy."""

    current: int
    """number of the new root's current release"""
    releases: tuple[int, ...]
    """numbers of the releases that were copied, or that the new root had already"""
    commits: int
    """number of commits that were copied"""
    files: int
    """number of files that were copied"""
    bytes: int
    """size of these files"""
    compared: int
    """number of files that the new root had already, and that were compared by sha256"""
    left_out: dict[str, int]
    """number of files of the old root that were not copied, by top folder"""
    newer: int
    """number of commits that the old root has got since the copy began"""


def copy_root(old: Releases, new: Releases, stages: Stages, *, only_current: bool = False) -> Copied:
    """Copy the releases of a root, or only the current one, so that `new` can be used as `old` can.

    Readers of the new root see no release before all its files are copied and compared. A copy that was
    killed continues. If the new root is a copy already, later releases and commits are added.

    Args:
        only_current: copy the files of the current release only. The new root has all commits, so earlier
            releases are pruned ones there.

    Raises:
        ConfigError: the new root has commits of its own, is in the old one, or cannot be written.
        DataError: the old root has no release, or one of its files or commits is missing or damaged.
        TransientError: a file disappeared during the copy, or rows are being erased from the old root.
    """
    _refuse_nested(old.store, new.store)
    commits = _read_commits(old)
    current = old.get(_newest_release(commits)).release  # refuses a root whose newest manifest is missing
    check_store(new.store, creates_once=new.commits.store is new.store)
    _missing_commits(commits, new.commits)  # refuses another root before any work
    _announce_waiting(old)
    numbers = (current,) if only_current else tuple(old.numbers())
    with lease(new.store), _kept_by_prune(old, numbers), new.store.scratch() as scratch:
        refuse_during_erasure(old.store)  # after the lease, which an erasure looks for
        copy = _Copy(old, new, scratch)
        files = copy.files_of(numbers) | ({} if only_current else copy.other_files())
        left_out = copy.left_out(files.keys() | set(old.manifest_paths(numbers).values()))
        files = {path: sha256 for path, sha256 in files.items() if not copy.is_published(path)}
        results = list[tuple[int, bool]]()
        with stages("copy", sum(map(copy.size_of, files)), "bytes") as bar:
            for is_record in (False, True):  # records go last: none is ever stored without its unit
                paths = [path for path in files if path.endswith(".json") == is_record]
                results += in_threads(lambda path: copy.file(path, files[path], bar.add), paths, _COPIERS)
        for number in numbers:
            copy.manifest(number)
        missing = _missing_commits(commits, new.commits)
        for number in missing:
            _create_commit(new.commits, number, commits[number])
        if len(missing) < len(commits):
            _announce_erased(new, missing)
    copied = [size for size, was_copied in results if was_copied]
    newer = sum(number > max(commits) for number in old.commits.numbers())
    return Copied(
        current, numbers, len(missing), len(copied), sum(copied), len(files) - len(copied), left_out, newer
    )


def _refuse_nested(old: Store, new: Store) -> None:
    """Raise ConfigError if one root is the other, or is below it."""
    paths = [
        (store.uri if "://" in store.uri else os.path.realpath(store.uri)).rstrip("/") + "/"
        for store in (old, new)
    ]
    if paths[0].startswith(paths[1]) or paths[1].startswith(paths[0]):
        raise ConfigError(
            "releases copy: NEW_ROOT",
            f"a root outside {old.uri}",
            new.uri,
            "name another folder or prefix",
        )


def _read_commits(old: Releases) -> dict[int, bytes]:
    """Read the commits of a root by number, void and truncated ones included.

    Raises:
        DataError: there is none, one is missing, or one that took effect is damaged.
    """
    numbers = old.commits.numbers()
    if error := old.commits.sequence_error(numbers):
        raise error
    for number in old.commits.unreadable():
        old.commits.read_or_raise(number)
    if not old.history():
        raise no_release(old.store)
    contents = in_threads(lambda number: old.commits.store.read(commit_path(number)), numbers)
    return dict(zip(numbers, contents, strict=True))


def _announce_waiting(old: Releases) -> None:
    """Say that a candidate that waits for its approval is not copied."""
    record = load_waiting(old.store)
    if record is not None and not is_overtaken(commits_since(old.commits, record)):
        announce(
            f"candidate {record.candidate} waits for its approval in {old.store.uri} and is not copied: the "
            "next night with the new root makes it again"
        )


def _announce_erased(new: Releases, added: Sequence[int]) -> None:
    """Say that an earlier copy still has files of rows that were erased since then.

    Args:
        added: numbers of the commits that were added.
    """
    if any(commit is not None and commit.kind == "erase" for commit in map(new.commits.read, added)):
        announce(
            f"{new.store.uri} may still have files of rows that were erased since the last copy, which no "
            "release needs: remove them with manta releases prune NEW_ROOT --keep N --grace-hours 0, and "
            "what it has below evaluations/, duplicates/ and augmented/ by hand"
        )


def _newest_release(commits: Mapping[int, bytes]) -> int:
    """Return the release of the newest commit that has one."""
    for number in sorted(commits, reverse=True):
        with contextlib.suppress(DataError):  # truncated: it never took effect
            commit = Commit.from_json(commits[number], commit_path(number))
            if commit.release is not None:
                return commit.release
    raise AssertionError("the history has a release")


def _missing_commits(commits: Mapping[int, bytes], new: Commits) -> list[int]:
    """Return the numbers of the commits that the new root lacks, in the order of their creation.

    In an empty root the newest comes first, so that the first commit makes the right release current. Later
    commits of a root that is a copy follow in their order. The sequence never has a gap.

    Raises:
        ConfigError: the new root has a commit that the old one lacks.
    """
    existing = new.numbers()
    contents = in_threads(lambda number: new.store.read(commit_path(number)), existing)
    for number, content in zip(existing, contents, strict=True):
        if commits.get(number) != content:
            raise _other_root(new, number)
    if error := new.sequence_error(existing):
        raise error
    newest = max(existing, default=max(commits))
    oldest = min(existing, default=newest + 1)
    later = sorted(number for number in commits if number > newest)
    return [*later, *sorted((number for number in commits if number < oldest), reverse=True)]


def _create_commit(new: Commits, number: int, content: bytes) -> None:
    path = commit_path(number)
    if not new.store.create(path, content) and new.store.read(path) != content:
        raise _other_root(new, number)


def _other_root(new: Commits, number: int) -> ConfigError:
    return ConfigError(
        new.store.uri_of(commit_path(number)),
        "no commit, or one of the root that is copied",
        "another commit: nights, holds or rollbacks have changed the new root",
        "copy to another folder or prefix; manta releases list shows the releases of both roots",
    )


@contextlib.contextmanager
def _kept_by_prune(old: Releases, numbers: Sequence[int]) -> Iterator[None]:
    """Hold a lease, with which prune keeps the releases while they are copied."""
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(lease(old.store, SERVED, release=numbers[-1], releases=list(numbers)))
        except (OSError, PipelineError) as error:  # for instance, the old root may only be read
            announce(f"do not prune {old.store.uri} during the copy: no lease can be written ({error})")
        yield


class _Copy:
    """A running copy, with the listings of both roots."""

    def __init__(self, old: Releases, new: Releases, scratch: Path) -> None:
        self._old, self._new, self._scratch = old, new, scratch
        self._published = set[str]()
        for number in filter(self._has_manifest, new.numbers()):
            self._published |= {report_path(number), summary_path(number)}
            self._published |= {file.path for file in needed_files(new.store, new.get(number))}
        self._old_sizes = {entry.path: entry.size for page in old.store.pages("") for entry in page}
        self._new_sizes = {entry.path: entry.size for page in new.store.pages("") for entry in page}

    def _has_manifest(self, number: int) -> bool:
        """Return whether the new root has the old root's manifest of release `number`."""
        path = self._old.manifest_paths([number])[number]
        try:
            return self._new.store.read(path) == self._old.store.read(path)
        except FileNotFoundError:
            return False

    def size_of(self, path: str) -> int:
        """Return the size of a file of the old root."""
        return self._old_sizes[path]

    def is_published(self, path: str) -> bool:
        """Return whether a committed release of the new root names the file, and it has the right size."""
        return path in self._published and self._new_sizes.get(path) == self._old_sizes[path]

    def files_of(self, numbers: Sequence[int]) -> dict[str, str]:
        """Return the files of the releases, except manifests: path -> sha256, "" if none is recorded.

        Raises:
            DataError: a file is missing.
        """
        files = dict[str, str]()
        for number in numbers:
            manifest = self._old.get(number)
            files |= {file.path: file.sha256 for file in needed_files(self._old.store, manifest)}
            others = [report_path(number), summary_path(number)]
            if manifest.transform_id:
                prefix = f"units/whitened/{manifest.transform_id[:16]}/"
                others += [path for path in self._old_sizes if path.startswith(prefix)]
            files |= {path: "" for path in others if path in self._old_sizes}
        if left_out := self._old.commits.left_out():  # without it, nights over the copy stop
            files[left_out.path] = left_out.sha256
        if missing := sorted(files.keys() - self._old_sizes.keys()):
            raise DataError(
                self._old.store.uri_of(missing[0]),
                "a file of a release",
                "no such file",
                "manta releases verify names all such files: restore them; manta nightly makes those of the "
                "current release again, and --current copies no other release",
            )
        return files

    def other_files(self) -> dict[str, str]:
        """Return the files that belong to the root and to no release: path -> ""."""
        paths = {
            path
            for path in self._old_sizes
            if path.partition("/")[0] in _OTHER_FOLDERS and not is_lease(path)
        }
        for series in list_series(self._old.store):
            for number in series.numbers():
                paths |= series.files(number) & self._old_sizes.keys()
        return dict.fromkeys(paths, "")

    def left_out(self, copied: Set[str]) -> dict[str, int]:
        """Count the files of the old root that are not among the copied paths, by top folder."""
        folders = Counter(
            path.partition("/")[0] for path in self._old_sizes if path not in copied and not is_lease(path)
        )
        return {folder: count for folder, count in sorted(folders.items()) if folder not in _MADE_AGAIN}

    def file(self, path: str, sha256: str, on_done: Callable[[int], None]) -> tuple[int, bool]:
        """Copy a file unless the new root has it, and compare the stored bytes.

        Args:
            sha256: the recorded sha256; empty to compare with the old file.
            on_done: called with the size of the file at the end.

        Returns:
            Size of the file, and whether it was copied.

        Raises:
            DataError: the old file is damaged, or the new store gives other bytes than were written.
            TransientError: the old file has disappeared.
        """
        size, old, new = self._old_sizes[path], self._old.store, self._new.store
        try:
            if self._new_sizes.get(path) == size:
                expected = sha256 or stored_sha256(old, path, size)
                if stored_sha256(new, path, size) == expected:
                    on_done(size)
                    return size, False
            written = self._transfer(path, size)
        except FileNotFoundError:
            raise TransientError(
                old.uri_of(path),
                "a file that stays while the root is copied",
                "no such file",
                "wait until prune has ended, and run again: the copy continues",
            ) from None
        if sha256 and written != sha256:
            new.delete(path)
            raise sha256_mismatch(old.uri_of(path), sha256, written)
        if (found := stored_sha256(new, path, size)) != written:
            raise sha256_mismatch(new.uri_of(path), written, found)
        on_done(size)
        return size, True

    def _transfer(self, path: str, size: int) -> str:
        """Copy a file. Returns the sha256 of the bytes that were read."""
        if size <= WHOLE_BYTES:
            content = self._old.store.read(path)
            self._new.store.write(path, content)
            return hashlib.sha256(content).hexdigest()
        local = self._scratch / hashlib.sha256(path.encode()).hexdigest()
        self._old.store.fetch(path, local)
        digest = sha256_of(local)
        self._new.store.put(local, path)
        return digest

    def manifest(self, number: int) -> None:
        """Copy the manifest of a release, whose files the new root has."""
        if not self._has_manifest(number):
            path = self._old.manifest_paths([number])[number]
            self._new.store.write(path, self._old.store.read(path))
