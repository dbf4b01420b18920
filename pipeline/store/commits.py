"""The commits of a root: numbered files, each created once. The highest one that can be read decides which release is current."""

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Literal

from pydantic import SerializerFunctionWrapHandler, model_serializer

from pipeline.errors import DataError
from pipeline.store.base import Store
from pipeline.store.units import Stored

_COMMIT = re.compile(r"commits/([0-9]{8})\.json")
_LAST = 99_999_999  # what the names have digits for
_THREADS = 16  # requests at once: an object store answers each in tens of milliseconds


class Commit(Stored):
    """Makes `release` current. hold: and no other until an unhold; void: uses up its number, no more."""

    commit: int
    kind: Literal["publish", "rollback", "hold", "unhold", "void"]
    release: int | None = None
    manifest: str | None = None
    sha256: str | None = None
    committed_at: str = ""
    reason: str = ""
    """of a hold, as it was given"""

    @model_serializer(mode="wrap")
    def _without_empty_reason(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Commits without a reason keep the bytes that they always had."""
        value: dict[str, Any] = dump(self)
        return value if self.reason else {name: each for name, each in value.items() if name != "reason"}


class Commits:
    """The sequence of commits in a store. A number between two others is never missing unless a file was deleted or forged."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def numbers(self) -> list[int]:
        """Ascending; other files beside the commits are ignored."""
        found = (_COMMIT.fullmatch(entry.path) for entry in self.store.list("commits", ".json"))
        return sorted(int(match[1]) for match in found if match)

    def read(self, number: int) -> Commit | None:
        """None where there is none, or only the beginning of one: on a file system without hard links it never took effect."""
        try:
            return Commit.load(self.store, commit_path(number))
        except DataError:
            return None

    def newest_first(self) -> Iterator[Commit]:
        """Readable commits. Each is read when it is asked for: the first few answer nearly every question."""
        read = (self.read(number) for number in reversed(self.numbers()))
        return (commit for commit in read if commit is not None)

    def history(self) -> list[Commit]:
        """Commits in order of number, void and unreadable ones left out."""
        with ThreadPoolExecutor(_THREADS) as pool:
            read = list(pool.map(self.read, self.numbers()))
        return [commit for commit in read if commit is not None and commit.kind != "void"]

    def unreadable(self) -> list[int]:
        """Numbers of commits that cannot be read: damaged, or cut off before they took effect."""
        numbers = self.numbers()
        with ThreadPoolExecutor(_THREADS) as pool:
            read = list(pool.map(self.read, numbers))
        return [number for number, commit in zip(numbers, read, strict=True) if commit is None]

    def damaged(self) -> list[int]:
        """Numbers of commits that took effect and cannot be read."""
        return [number for number in self.unreadable() if self._is_damaged(number)]

    def _is_damaged(self, number: int) -> bool:
        try:
            self.decided(number)
        except DataError:
            return True
        return False

    def hold(self) -> Commit | None:
        """The hold that is in force; None where there is none. DataError for a damaged commit, which may be one."""
        for number in reversed(self.numbers()):
            commit = self.decided(number)
            if commit is not None and commit.kind != "void":
                return commit if commit.kind == "hold" else None
        return None

    def decided(self, number: int) -> Commit | None:
        """As `read`, for a caller that changes the root: DataError for a damaged commit, which took effect."""
        try:
            return Commit.left(self.store, commit_path(number))
        except DataError as error:
            remedy = (
                "it may hold the root, or make another release current: restore it from a copy; without one, delete it "
                "and give that hold or rollback again; until then nothing is changed"
            )
            found = " ".join(error.found.split())
            raise DataError(error.where, "a readable commit", found, remedy) from None

    def create(self, commit: Commit) -> bool:
        """Whether the number was still free. Of two racers exactly one gets True."""
        return self.store.create(commit_path(commit.commit), commit.to_json())

    def next_number(self) -> int:
        """The number after the highest, void ones included. DataError for a sequence with a gap, or one that has no number left."""
        numbers = self.numbers()
        if damage := self.damage(numbers):
            raise damage
        last = max(numbers, default=0)
        if last >= _LAST:
            raise _damage(self.store, "a number that a later commit can exceed", f"commit {last}", last)
        return last + 1

    def damage(self, numbers: Sequence[int] | None = None) -> DataError | None:
        """The first gap in the sequence; None where it is whole.

        The first commits may be gone: nothing depends on them. numbers: as listed already.
        """
        for before, after in pairwise(self.numbers() if numbers is None else numbers):
            if after > before + 1 and not self.store.exists(
                commit_path(before + 1)
            ):  # a listing may miss what is created meanwhile
                return _damage(
                    self.store, f"commit {before + 1} after commit {before}", f"commit {after}", after
                )
        return None


def _damage(store: Store, expected: str, found: str, number: int) -> DataError:
    remedy = (
        "a commit was deleted or forged: restore what is missing, or, if no night of yours made it, delete "
        f"{commit_path(number)}; until then nothing is published"
    )
    return DataError(store.uri_of("commits"), expected, found, remedy)


def commit_path(number: int) -> str:
    return f"commits/{number:08d}.json"


def now() -> str:
    """As commits show the time: ISO 8601, UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
