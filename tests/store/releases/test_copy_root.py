"""A copy of a root has its commits and every byte of its releases, or is not visible yet."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ConfigError, DataError
from pipeline.log import Stages
from pipeline.store.files.base import Store
from pipeline.store.files.local import LocalStore
from pipeline.store.files.open_store import open_store
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.releases.copy_root import Copied, copy_root
from pipeline.store.releases.manifest import manifest_path
from pipeline.store.releases.prune import prune
from pipeline.store.releases.release import Releases
from pipeline.store.releases.verify import files_of
from pipeline.store.releases.waiting import WAITING, Waiting
from tests.conftest import REMOTE
from tests.store.candidates import publish


class Killed(BaseException):
    """Ends a copy as SIGKILL does: nothing handles it."""


class WatchedStore(LocalStore):
    """A store on disk that calls `on_write` before and after every change.

    Once a call has raised Killed, every later change raises it, too.
    """

    on_write: Callable[[str], None] = staticmethod(lambda path: None)
    is_dead = False

    def _change(self, path: str, change: Callable[[], object]) -> object:
        try:
            if self.is_dead:
                raise Killed
            self.on_write(path)
            result = change()
            self.on_write(path)
            return result
        except Killed:
            self.is_dead = True
            raise

    def write(self, path: str, data: bytes) -> None:
        self._change(path, lambda: super(WatchedStore, self).write(path, data))

    def create(self, path: str, data: bytes) -> bool:
        return bool(self._change(path, lambda: super(WatchedStore, self).create(path, data)))

    def put(self, local: Path, path: str) -> None:
        self._change(path, lambda: super(WatchedStore, self).put(local, path))

    def delete(self, path: str) -> None:
        self._change(path, lambda: super(WatchedStore, self).delete(path))


def killed_at(call: int) -> Callable[[str], None]:
    """Return a function that raises Killed when it is called for the time `call`."""
    calls = iter(range(1, call))

    def count(path: str) -> None:
        if next(calls, None) is None:
            raise Killed

    return count


@pytest.fixture(autouse=True)
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copy files one after the other, so that the number of a write means the same in every run, and without
    waiting for the disk.
    """
    monkeypatch.setattr("pipeline.store.releases.copy_root._COPIERS", 1)
    monkeypatch.setattr("os.fsync", lambda handle: None)


@pytest.fixture
def old(tmp_path: Path) -> Store:
    """A root of three releases that share files; the second is current and held."""
    store = open_store(tmp_path / "old")
    for name, shared in (("one", "a"), ("two", "b"), ("three", "b")):
        publish(store, name, shared)
    Releases(store).rollback(2)
    Releases(store).hold(reason="while the encoder is changed")
    return store


def copy(old: Store, new: Store, *, only_current: bool = False) -> Copied:
    return copy_root(Releases(old), Releases(new), Stages(), only_current=only_current)


def contents(store: Store) -> dict[str, bytes]:
    """Return all files but those that are written for a root itself."""
    own = ("index.html", "candidates/", "served/")
    return {entry.path: store.read(entry.path) for entry in store.list() if not entry.path.startswith(own)}


def check_visible_releases(old: Store, new: Store) -> bool:
    """Check every release that readers of the new root find. Returns whether there is a current one."""
    releases = Releases(new)
    assert releases.commits.sequence_error(releases.commits.numbers()) is None
    for number in releases.numbers():
        assert new.read(manifest_path(number)) == old.read(manifest_path(number))
        for file in files_of(new, releases.get(number)):
            assert new.read(file.path) == old.read(file.path)
    return releases.current() is not None


def test_a_copy_has_the_same_files_commits_and_hold(old: Store, tmp_path: Path):
    new = open_store(tmp_path / "new")
    copied = copy(old, new)
    assert contents(new) == contents(old)
    assert (copied.current, copied.releases, copied.commits) == (2, (1, 2, 3), 5)
    assert (copied.left_out, copied.newer, copied.compared) == ({}, 0, 0)
    hold = Releases(new).commits.hold()
    assert hold is not None
    assert (hold.release, hold.reason) == (2, "while the encoder is changed")
    assert not [entry.path for entry in (*old.list("served"), *new.list("candidates"))], "leases have ended"
    again = copy(old, new)
    assert (again.files, again.commits, contents(new) == contents(old)) == (0, 0, True)


@pytest.mark.slow
def test_a_kill_at_any_write_leaves_nothing_visible_or_all_and_the_next_copy_completes_it(
    old: Store, tmp_path: Path
):
    was_visible = dict[bool, int]()
    for call in range(1, 10_000):
        folder = tmp_path / f"new-{call}"
        store = WatchedStore(str(folder))
        store.on_write = killed_at(call)
        try:
            copy(old, store)
            break
        except Killed:
            pass
        new = open_store(folder)
        is_visible = check_visible_releases(old, new)
        was_visible[is_visible] = was_visible.get(is_visible, 0) + 1
        assert not is_visible or Releases(new).get_or_current(None).release == 2
        copy(old, new)
        assert contents(new) == contents(old)
    assert was_visible[False] > 60
    assert was_visible[True] > 5, "kills while the older commits were written"


STEPS = st.lists(
    st.sampled_from(["publish", "rollback", "hold", "release", "prune"]) | st.integers(1, 60),
    min_size=1,
    max_size=10,
)


@given(steps=STEPS, only_current=st.booleans())
def test_copies_of_a_changing_root_are_complete_after_every_step(steps: list[str | int], only_current: bool):
    """An integer is a copy that is killed at that write."""
    with tempfile.TemporaryDirectory() as folder:
        old, new = open_store(f"{folder}/old"), open_store(f"{folder}/new")
        publish(old, "first")
        for number, step in enumerate(steps):
            releases = Releases(old)
            if isinstance(step, int):
                store = WatchedStore(f"{folder}/new")
                store.on_write = killed_at(step)
                try:
                    copy(old, store, only_current=only_current)
                except Killed:
                    check_visible_releases_of_any_time(new)
            elif step == "publish":
                if releases.commits.hold() is None:
                    publish(old, f"night-{number}", f"shared-{number % 2}")
            elif step == "prune":
                prune(releases, keep=1)
            elif step == "release":
                releases.unhold()
            elif releases.commits.hold() is None:
                getattr(releases, step)(releases.numbers()[0])
        copied = copy(old, new, only_current=only_current)
        wanted, found = Releases(old), Releases(new)
        assert found.get_or_current(None) == wanted.get_or_current(None)
        assert found.history() == wanted.history()
        assert set(found.numbers()) >= set(copied.releases)
        assert set(copied.releases) == ({copied.current} if only_current else set(wanted.numbers()))
        check_visible_releases_of_any_time(new)


def check_visible_releases_of_any_time(new: Store) -> None:
    """Check all files of the new root's releases by the sha256 that the manifests record."""
    releases = Releases(new)
    assert releases.commits.sequence_error(releases.commits.numbers()) is None
    for number in releases.numbers():
        for file in files_of(new, releases.get(number)):
            if file.sha256:
                new.read_checked(file.path, file.sha256)
            else:
                assert new.exists(file.path)


def test_a_root_that_grows_while_it_is_copied_is_copied_as_it_was(old: Store, tmp_path: Path):
    Releases(old).unhold()
    before, store, grown = Releases(old).history(), WatchedStore(str(tmp_path / "new")), list[int]()

    def publish_once(path: str) -> None:
        if path.startswith("indexes/") and not grown:
            grown.append(publish(old, "four", "c").release)

    store.on_write = publish_once
    copied = copy(old, store)
    assert grown == [7]
    assert (copied.newer, Releases(store).history()) == (1, before)
    assert check_visible_releases(old, store)
    later = copy(old, store)
    assert (later.current, later.commits, later.newer) == (7, 1, 0)
    assert later.compared == 0, "files of releases that were copied before are not read again"
    assert Releases(store).history() == Releases(old).history()
    assert check_visible_releases(old, store)


def test_prune_keeps_the_releases_that_are_being_copied(old: Store, tmp_path: Path):
    store, pruned = WatchedStore(str(tmp_path / "new")), list[tuple[int, ...]]()

    def prune_once(path: str) -> None:
        if path.startswith("indexes/") and not pruned:
            pruned.append(prune(Releases(old), keep=1, grace_s=-60).removed)

    store.on_write = prune_once
    copied = copy(old, store)
    assert (pruned, copied.releases) == ([()], (1, 2, 3))
    assert prune(Releases(old), keep=1).removed == (1, 3)


def test_a_copy_of_the_current_release_has_its_files_and_all_commits(old: Store, tmp_path: Path):
    new = open_store(tmp_path / "new")
    copied = copy(old, new, only_current=True)
    assert copied.releases == (2,)
    assert copied.left_out["releases"] == 4, "manifest and report of the two others"
    releases = Releases(new)
    assert (releases.numbers(), releases.history()) == ([2], Releases(old).history())
    assert check_visible_releases(old, new)
    needed = {file.path for file in files_of(new, releases.get(2))} | {"releases/00000002/report.html"}
    assert contents(new).keys() - {f"commits/{number:08d}.json" for number in range(1, 6)} == needed | {
        manifest_path(2)
    }
    assert copy(old, new).releases == (1, 2, 3)
    assert contents(new) == contents(old)


def test_other_files_of_the_root_are_copied_or_counted(old: Store, tmp_path: Path):
    own = {
        "evaluations/scores.json": b"{}",
        "augmented/a/notes.txt": b"x",
        "exports/docs/00000001/manifest.json": b"y",
    }
    for path, content in own.items():
        old.write(path, content)
    for path in ("candidates/c/report.html", "units/vectors/s/unused.parquet", "served/lease-1.json"):
        old.write(path, b"{}")
    new = open_store(tmp_path / "new")
    copied = copy(old, new)
    assert own.items() <= contents(new).items()
    assert copied.left_out == {"candidates": 1, "units": 1}
    old.write("evaluations/scores.json", b"[]")
    copy(old, new)
    assert new.read("evaluations/scores.json") == b"[]"


def test_a_waiting_candidate_is_named_as_not_copied(
    old: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    record = Waiting(
        candidate="c0ffee",
        manifest=FileRef(path="candidates/c0ffee/manifest.json", sha256="0" * 64),
        parent=2,
        last_commit=5,
        first_ordinal=3,
        at="2026-11-29T02:30:00+00:00",
        reason="release.publish=approval",
        rows=1,
    )
    old.write(WAITING, record.to_json())
    copied = copy(old, open_store(tmp_path / "new"))
    assert "candidate c0ffee waits for its approval" in capsys.readouterr().err
    assert copied.left_out == {"candidates": 1}


@pytest.mark.parametrize("harm", ["changed", "missing"])
def test_a_damaged_root_is_not_copied(old: Store, tmp_path: Path, harm: str):
    new, path = open_store(tmp_path / "new"), "indexes/one.faiss"
    content = old.read(path)
    old.delete(path)
    if harm == "changed":
        old.write(path, content[::-1])
    with pytest.raises(DataError, match=path):
        copy(old, new)
    assert not new.list("commits")
    assert not new.exists(path)
    old.write(path, content)
    copy(old, new)
    assert contents(new) == contents(old)


@pytest.mark.parametrize("only_current", [False, True])
def test_a_root_without_its_newest_manifest_is_not_copied(old: Store, tmp_path: Path, only_current: bool):
    old.delete(manifest_path(2))
    new = open_store(tmp_path / "new")
    with pytest.raises(DataError, match="release 2: expected a committed release"):
        copy(old, new, only_current=only_current)
    assert not new.list()


def test_a_file_of_an_unfinished_copy_is_written_again_if_its_bytes_differ(old: Store, tmp_path: Path):
    new, path = open_store(tmp_path / "new"), "indexes/one.faiss"
    new.write(path, old.read(path)[::-1])
    assert copy(old, new).compared == 0
    assert contents(new) == contents(old)


def test_a_store_that_damages_what_it_stores_gets_no_commit(old: Store, tmp_path: Path):
    class Damaging(LocalStore):
        def write(self, path: str, data: bytes) -> None:
            super().write(path, data[::-1] if path.endswith(".faiss") else data)

    new = Damaging(str(tmp_path / "new"))
    with pytest.raises(DataError, match=r"indexes/\w+\.faiss"):
        copy(old, new)
    assert not new.list("commits")


def test_a_root_with_commits_of_its_own_is_left_alone(old: Store, tmp_path: Path):
    new = open_store(tmp_path / "new")
    publish(new, "other")
    before = contents(new)
    with pytest.raises(ConfigError, match=r"commits/00000001\.json"):
        copy(old, new)
    assert contents(new) == before
    copied = open_store(tmp_path / "copied")
    copy(old, copied)
    Releases(copied).unhold()
    with pytest.raises(ConfigError, match=r"commits/00000006\.json"):
        copy(old, copied)


@pytest.mark.parametrize("folder", [".", "below", ".."])
def test_a_copy_into_the_root_itself_is_refused(old: Store, folder: str):
    with pytest.raises(ConfigError, match="a root outside"):
        copy(old, open_store(Path(old.uri, folder)))


def test_without_a_release_nothing_is_copied(tmp_path: Path):
    with pytest.raises(DataError, match="a published release"):
        copy(open_store(tmp_path / "empty"), open_store(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("server", REMOTE)
def test_a_root_survives_the_way_to_an_object_store_and_back(
    old: Store, tmp_path: Path, bucket_at: Callable[[str], str], server: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("pipeline.store.releases.copy_root.WHOLE_BYTES", 20)  # some are larger
    remote = open_store(f"{bucket_at(server)}/{tmp_path.name}")
    copy(old, remote)
    back = open_store(tmp_path / "back")
    copy(remote, back)
    assert contents(remote) == contents(old) == contents(back)
