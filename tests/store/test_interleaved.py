"""A change of the current release and a prune that run together: one of them is refused, and no release that
became current loses a file, whichever call to the store of one the other interrupts.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from pipeline.errors import DataError, TransientError
from pipeline.store.files.base import Entry
from pipeline.store.files.lease import active_leases
from pipeline.store.files.local import LocalStore
from pipeline.store.releases.prune import prune
from pipeline.store.releases.release import Releases
from pipeline.store.releases.verify import size_faults
from tests.store.candidates import publish


class Interrupted(LocalStore):
    """Calls `meanwhile` once, before call number `turn` of any kind."""

    calls = 0
    turn = 0
    meanwhile: Callable[[], object]

    def _count(self) -> None:
        self.calls += 1
        if self.calls == self.turn:
            self.meanwhile()

    def read(self, path: str) -> bytes:
        self._count()
        return super().read(path)

    def write(self, path: str, data: bytes) -> None:
        self._count()
        super().write(path, data)

    def create(self, path: str, data: bytes) -> bool:
        self._count()
        return super().create(path, data)

    def entry(self, path: str) -> Entry | None:
        self._count()
        return super().entry(path)

    def list(self, prefix: str = "", suffix: str = "") -> list[Entry]:
        self._count()
        return super().list(prefix, suffix)

    def pages(self, prefix: str) -> Iterator[Sequence[Entry]]:
        self._count()
        yield from super().pages(prefix)

    def delete(self, path: str) -> None:
        self._count()
        super().delete(path)


def attempt(change: Callable[[], object]) -> str:
    """Return how the change ended: done, refused for the moment, or refused since the release is gone."""
    try:
        change()
    except TransientError:
        return "refused"
    except DataError:
        return "gone"
    return "done"


CHANGES: dict[str, Callable[[Releases], object]] = {
    "rollback": lambda releases: releases.rollback(1),
    "hold": lambda releases: releases.hold(1),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("interrupted", ["change", "prune"])
def test_a_release_that_becomes_current_during_a_prune_keeps_all_files(
    change: str, interrupted: str, tmp_path: Path
):
    make: dict[str, Callable[[Releases], object]] = {
        "change": CHANGES[change],
        "prune": lambda releases: prune(releases, keep=1),
    }
    other = "prune" if interrupted == "change" else "change"
    for turn in range(1, 300):
        folder = str(tmp_path / str(turn))
        for name in ("one", "two"):
            publish(LocalStore(folder), name, name)
        ends = dict[str, str]()

        def meanwhile(folder: str = folder, ends: dict[str, str] = ends) -> None:
            ends[other] = attempt(lambda: make[other](Releases(LocalStore(folder))))

        store = Interrupted(folder)
        store.turn, store.meanwhile = turn, meanwhile
        ends[interrupted] = attempt(lambda store=store: make[interrupted](Releases(store)))
        if store.calls < turn:
            break
        where = f"before call {turn}: {ends}"
        current = Releases(LocalStore(folder)).get_or_current(None)
        assert current.release == (1 if ends["change"] == "done" else 2), where
        assert not [*size_faults(LocalStore(folder), current)], where
        assert "done" in ends.values() or set(ends.values()) == {"refused"}, where
        assert not active_leases(LocalStore(folder)), where
    assert turn > 8
