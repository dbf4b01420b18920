"""The commits of a root: numbered files, each created once. The highest names the current release."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Literal

from pydantic import SerializerFunctionWrapHandler, model_serializer

from pipeline.config import Settings
from pipeline.errors import DataError, TransientError
from pipeline.store.files.base import Store, in_threads
from pipeline.store.records.sealed_json import FileRef, Stored

_COMMIT = re.compile(r"commits/([0-9]{8})\.json")
ERASURES = "erasures"
"""folder of the receipts of erasures"""
_MAX_NUMBER = 99_999_999  # the names have eight digits


class Approval(Settings):
    """The approval of a candidate that waited: who published it."""

    candidate: str
    """first digits of the candidate's id"""
    by: str
    note: str = ""
    user: str
    """name of the account"""
    host: str


class RewrittenManifest(Settings):
    """The manifest of a release that an erasure replaced."""

    release: int
    before: str
    """sha256 of the manifest that was replaced"""
    manifest: str
    """path of the manifest that replaces it"""
    sha256: str


class Commit(Stored):
    """A record that makes `release` current.

    A hold keeps its release current until an unhold. A void commit has no release: it only reserves its
    number. An erasure keeps the current release, and replaces the manifests of the releases whose rows it
    erased.
    """

    commit: int
    kind: Literal["publish", "rollback", "hold", "unhold", "void", "erase"]
    release: int | None = None
    manifest: str | None = None
    sha256: str | None = None
    committed_at: str = ""
    reason: str = ""
    """reason of a hold, as the user gave it"""
    approval: Approval | None = None
    """who published a candidate that waited; None for the release of a night"""
    erasure: str | None = None
    """id of an erasure"""
    rewritten: tuple[RewrittenManifest, ...] = ()
    """the manifests that an erasure replaced"""
    left_out: FileRef | None = None
    """keyed hashes of all ids that nights leave out from this erasure on; None if it added none"""

    @model_serializer(mode="wrap")
    def _without_empty_fields(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out empty fields of later versions, so that commits have the bytes of earlier versions."""
        value: dict[str, Any] = dump(self)
        for name in ("reason", "approval", "erasure", "rewritten", "left_out"):
            if not value[name]:
                del value[name]
        return value


class Commits:
    """The sequence of commits in a store. It has a gap only if a file was deleted or forged."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._rewritten: dict[int, dict[int, RewrittenManifest]] = {}

    def numbers(self) -> list[int]:
        """List the numbers of the commits, ascending. Other files in the folder are ignored."""
        matches = (_COMMIT.fullmatch(entry.path) for entry in self.store.list("commits", ".json"))
        return sorted(int(match[1]) for match in matches if match)

    def read(self, number: int) -> Commit | None:
        """Return commit `number`; None if it does not exist or cannot be read.

        On a file system without hard links, a killed process may leave a truncated commit, which never took
        effect.
        """
        try:
            return Commit.load(self.store, commit_path(number))
        except DataError:
            return None

    def history(self) -> list[Commit]:
        """List the commits in order of number, without void and unreadable ones."""
        commits = in_threads(self.read, self.numbers())
        return [commit for commit in commits if commit is not None and commit.kind != "void"]

    def rewritten(self, after: int = 0) -> dict[int, RewrittenManifest]:
        """Return the manifests that erasures after commit `after` replaced, by release; the last ones count.

        A commit never changes, so each is read once.
        """
        numbers = [number for number in self.numbers() if number > after]
        unknown = [number for number in numbers if number not in self._rewritten]
        for number, commit in zip(unknown, in_threads(self.read, unknown), strict=True):
            if commit is not None:
                self._rewritten[number] = {each.release: each for each in commit.rewritten}
        found: dict[int, RewrittenManifest] = {}
        for number in numbers:
            found |= self._rewritten.get(number, {})
        return found

    def left_out(self) -> FileRef | None:
        """Return the file of ids that nights leave out, by the last erasure that names one; None without one.

        Raises:
            DataError: a commit is damaged, and may be this one.
        """
        numbers = self.numbers()
        commits = in_threads(self.read_or_raise, reversed(numbers))
        return next((each.left_out for each in commits if each is not None and each.left_out), None)

    def follow(self, commit: Commit) -> Commit:
        """Return the commit with the present manifest of its release, which an erasure may have replaced."""
        found = None if commit.release is None else self.rewritten(commit.commit).get(commit.release)
        if found is None:
            return commit
        return commit.model_copy(update={"manifest": found.manifest, "sha256": found.sha256})

    def refuse_erased_since(self, number: int) -> None:
        """Raise TransientError if rows were erased after commit `number`.

        What was made from the files of an earlier commit may have the rows, or need files that are gone.
        """
        for later in (each for each in self.numbers() if each > number):
            commit = self.read_or_raise(later)
            if commit is not None and commit.kind == "erase":
                raise TransientError(
                    self.store.uri_of(commit_path(later)),
                    "no erasure while a release is made",
                    f"one at {commit.committed_at}",
                    "run again: other files than those of erased rows are used",
                )

    def unreadable(self) -> list[int]:
        """List the numbers of commits that cannot be read: damaged, or truncated before they took effect."""
        numbers = self.numbers()
        commits = in_threads(self.read, numbers)
        return [number for number, commit in zip(numbers, commits, strict=True) if commit is None]

    def hold(self) -> Commit | None:
        """Return the hold in force; None if the root is not held. An erasure does not end a hold.

        Raises:
            DataError: a commit is damaged, and may be a hold.
        """
        for number in reversed(self.numbers()):
            commit = self.read_or_raise(number)
            if commit is not None and commit.kind not in ("void", "erase"):
                return commit if commit.kind == "hold" else None
        return None

    def read_or_raise(self, number: int) -> Commit | None:
        """Return commit `number`, for callers that change the root; None if it is missing or truncated.

        Raises:
            DataError: the commit took effect and is damaged.
        """
        try:
            return Commit.load_intact(self.store, commit_path(number))
        except DataError as error:
            raise DataError(
                error.where,
                "a readable commit",
                " ".join(error.found.split()),
                "restore this file from a backup; if there is none, delete it and repeat the hold or "
                "rollback that it recorded; until then nothing is changed",
            ) from None

    def create(self, commit: Commit) -> bool:
        """Store the commit. Returns False if its number is taken; of two racing calls one gets True."""
        return self.store.create(commit_path(commit.commit), commit.to_json())

    def next_number(self) -> int:
        """Return the number after the highest one, void commits included.

        Raises:
            DataError: the sequence has a gap, or no number is left.
        """
        numbers = self.numbers()
        if error := self.sequence_error(numbers):
            raise error
        last = max(numbers, default=0)
        if last >= _MAX_NUMBER:
            raise self._unexpected_commit(last, f"a number below {_MAX_NUMBER}")
        return last + 1

    def sequence_error(self, numbers: Sequence[int]) -> DataError | None:
        """Return the error for the first gap in the sequence; None without a gap.

        Missing numbers before the first commit are not a gap, because nothing depends on these commits.

        Args:
            numbers: result of `numbers()`.
        """
        for number, following in pairwise(numbers):
            # A listing may miss a commit that is created meanwhile: look for the missing file itself.
            if following > number + 1 and not self.store.exists(commit_path(number + 1)):
                return self._unexpected_commit(following, f"commit {number + 1} after commit {number}")
        return None

    def _unexpected_commit(self, number: int, expected: str) -> DataError:
        return DataError(
            self.store.uri_of("commits"),
            expected,
            f"commit {number}",
            f"a commit was deleted or forged: restore the missing one, or delete {commit_path(number)} if "
            "none of your nights made it; until then nothing is published or pruned",
        )


def commit_path(number: int) -> str:
    """Return the path of commit `number`."""
    return f"commits/{number:08d}.json"


def utc_now() -> str:
    """Return the current time as commits record it: ISO 8601, UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
