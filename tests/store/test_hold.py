"""A held release stays current until the hold ends, and a damaged hold refuses every change."""

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.errors import ConfigError, DataError, RootHeld
from pipeline.log import listening
from pipeline.store.files.base import Entry, Store
from pipeline.store.files.local import LocalStore
from pipeline.store.releases.commits import Commit, commit_path
from pipeline.store.releases.manifest import ReleaseManifest, manifest_path
from pipeline.store.releases.prune import prune
from pipeline.store.releases.release import Releases
from tests.conftest import CommandResult
from tests.store.candidates import candidate, publish


def test_a_hold_keeps_its_release_current_until_it_ends(store: Store):
    publish(store, "one")
    publish(store, "two")
    held = Releases(store).hold(1, "a bad delivery")
    assert (held.commit, held.kind, held.release, held.reason) == (3, "hold", 1, "a bad delivery")
    late = candidate(store, "late", 1)
    with pytest.raises(RootHeld, match=r"release 1 has been held since .* \(a bad delivery\)") as caught:
        Releases(store).publish(late, str)
    assert caught.value.exit_code == 0
    assert f"`manta releases release {store.uri}`" in str(caught.value)
    assert not store.exists(manifest_path(4))
    assert Releases(store).current() == Releases(store).get(1)
    assert Releases(store).hold(1).commit == 3, "a held release is not held a second time"
    for change in (Releases(store).rollback, Releases(store).hold):
        with pytest.raises(
            ConfigError, match=r"release 2: expected a root that is not held, found release 1 held since"
        ):
            change(2)
    end = Releases(store).unhold()
    assert end is not None
    assert (end.commit, end.release, end.reason) == (4, 1, "")
    assert Releases(store).unhold() is None
    assert Releases(store).publish(late, str).release == 5


def test_a_concurrent_hold_precedes_or_follows_the_publication(store: Store):
    """Both create the next number of the sequence, which only one of them can."""
    publish(store, "one")
    for turn in range(8):
        night = candidate(store, f"night {turn}", Releases(store).get_or_current(None).release)
        outcome: list[str] = []

        def run(night: ReleaseManifest = night, outcome: list[str] = outcome) -> None:
            try:
                outcome.append(f"published {Releases(store).publish(night, str).release}")
            except RootHeld:
                outcome.append("held")

        thread = threading.Thread(target=run)
        thread.start()
        held = Releases(store).hold()
        thread.join()
        current = Releases(store).get_or_current(None).release
        assert current == held.release
        assert outcome in (["held"], [f"published {current}"])
        Releases(store).unhold()


class Interrupted(LocalStore):
    """Calls `meanwhile` before call number `turn` that reads, lists or creates commits."""

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

    def list(self, prefix: str = "", suffix: str = "") -> list[Entry]:
        self._count()
        return super().list(prefix, suffix)

    def create(self, path: str, data: bytes) -> bool:
        self._count()
        return super().create(path, data)


@pytest.mark.parametrize(
    ("change", "meanwhile", "expected"),
    [
        # a night is published while the current release is held: the hold is of that release
        (Releases.hold, lambda releases, night: releases.publish(night, str), 3),
        # the root is held while it is rolled back: the rollback is refused
        (lambda releases: releases.rollback(1), lambda releases, _: releases.hold(2), 2),
        # the hold is moved to another release while it ends: that release stays current
        (
            Releases.unhold,
            lambda releases, _: (releases.unhold(), releases.hold(1)),
            1,
        ),
    ],
    ids=["hold", "rollback", "unhold"],
)
def test_a_change_of_the_root_overrides_no_commit_that_was_made_at_any_moment_of_it(
    change: Callable[[Releases], Commit],
    meanwhile: Callable[[Releases, ReleaseManifest], object],
    expected: int,
    tmp_path: Path,
):
    for turn in range(1, 100):
        folder = str(tmp_path / str(turn))
        store = LocalStore(folder)
        for name in ("one", "two"):
            publish(store, name)
        if change is Releases.unhold:
            Releases(store).hold(2)
        night = candidate(store, "night", 2)
        interrupted = Interrupted(folder)
        interrupted.turn = turn
        interrupted.meanwhile = lambda store=store, night=night: meanwhile(Releases(store), night)
        with contextlib.suppress(ConfigError):
            change(Releases(interrupted))
        if interrupted.calls < turn:
            break
        assert Releases(store).get_or_current(None).release == expected, f"before call {turn}"
    assert turn > 4


def test_a_damaged_hold_is_effective_and_a_truncated_one_is_not(
    store: Store, manta: Callable[..., CommandResult]
):
    for name in ("one", "two"):
        publish(store, name)
    hold = Releases(store).hold(1)
    late, content = candidate(store, "late", 2), store.read(commit_path(hold.commit))
    releases = Releases(store)
    for damaged in (content.replace(b'"hold"', b'"hOld"'), content.replace(b"3", b"4"), b"{}\n"):
        store.write(commit_path(hold.commit), damaged)
        before = {entry.path for entry in store.list()}
        for change in (
            lambda: releases.publish(late, str), lambda: releases.rollback(1), lambda: releases.hold(2),
            releases.unhold, lambda: prune(releases, keep=1),
        ):  # fmt: skip
            with pytest.raises(
                DataError,
                match=r"00000003\.json: expected a readable commit.*restore this file from a backup",
            ):
                change()
        assert {entry.path for entry in store.list()} == before
        with listening() as messages:
            assert releases.get_or_current(None).release == 2, "readers continue with the last release"
        assert "00000003.json is skipped" in messages[0]
        listed = manta("releases", "list", store.uri)
        assert (listed.code, "a readable commit" in listed.out) == (3, True)
    store.write(commit_path(hold.commit), content)
    with pytest.raises(RootHeld):
        Releases(store).publish(late, str)
    store.write(commit_path(hold.commit), content[:40])
    assert Releases(store).publish(late, str).release == 4
