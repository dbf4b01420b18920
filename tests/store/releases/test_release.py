"""One publisher of many wins, a late publisher changes nothing, and no number of a release is reused."""

import threading
from pathlib import Path

import pytest

from pipeline.errors import DataError, PublishConflict, TransientError
from pipeline.store.files.base import Store
from pipeline.store.files.open_store import open_store
from pipeline.store.releases.commits import commit_path
from pipeline.store.releases.manifest import manifest_path
from pipeline.store.releases.release import Releases
from tests.store.candidates import candidate, publish


def test_releases_count_from_one_and_the_last_is_current(store: Store):
    assert Releases(store).current() is None
    assert [publish(store, name).release for name in ("one", "two")] == [1, 2]
    current = Releases(store).current()
    assert current is not None
    assert (current.release, current.parent) == (2, 1)
    assert store.read("releases/00000002/report.html") == b"<html>2"


def test_the_repr_of_releases_names_their_stores(tmp_path: Path):
    store, commits = open_store(tmp_path / "root"), open_store(tmp_path / "commits")
    assert repr(Releases(store)) == f"Releases({store!r})"
    assert repr(Releases(store, commits)) == f"Releases({store!r}, {commits!r})"


def test_two_concurrent_publishers_leave_one_release(store: Store):
    outcomes: list[str] = []

    def run(name: str) -> None:
        try:
            outcomes.append(f"published {Releases(store).publish(candidate(store, name, None), str).release}")
        except PublishConflict as conflict:
            outcomes.append(f"lost to {conflict.number}")

    threads = [threading.Thread(target=run, args=(name,)) for name in ("a", "b", "c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["lost to 1", "lost to 1", "published 1"]
    assert [commit.kind for commit in Releases(store).history()] == ["publish"]


def test_an_overtaken_night_changes_nothing(store: Store):
    late = candidate(store, "late", None)
    publish(store, "early")
    before = {entry.path for entry in store.list()}
    with pytest.raises(PublishConflict, match="release 1 was published by another run"):
        Releases(store).publish(late, str)
    assert {entry.path for entry in store.list()} == before


def test_a_number_reserved_by_a_killed_run_is_never_used(store: Store, monkeypatch: pytest.MonkeyPatch):
    dead = candidate(store, "dead", None).model_copy(update={"release": 1})
    store.create(manifest_path(1), dead.to_json())
    monkeypatch.setattr("pipeline.store.releases.release._RESERVATION_S", 0.3)
    assert publish(store, "alive").release == 2
    assert not store.create(commit_path(1), b"the dead run wakes up"), "its number is used up"
    current = Releases(store).current()
    assert current is not None
    assert current.release == 2


def test_a_run_stopped_between_manifest_and_commit_resumes_with_its_number(store: Store):
    mine = candidate(store, "mine", None)
    store.create(manifest_path(1), mine.model_copy(update={"release": 1}).to_json())
    assert Releases(store).publish(mine, str).release == 1


@pytest.mark.usefixtures("unit_form")
def test_rollback_is_a_commit_and_the_next_release_builds_on_it(store: Store):
    publish(store, "one")
    publish(store, "two")
    commit = Releases(store).rollback(1)
    assert commit.commit == 3
    current = Releases(store).current()
    assert current is not None
    assert current.release == 1
    fourth = publish(store, "four")
    assert (fourth.release, fourth.parent) == (4, 1)


def test_rollback_to_a_missing_release_lists_the_existing_ones(store: Store):
    publish(store, "one")
    with pytest.raises(DataError, match=r"release 7.*the existing releases are: 1"):
        Releases(store).rollback(7)


def test_only_requested_commits_are_read(store: Store, monkeypatch: pytest.MonkeyPatch):
    for name in ("one", "two", "three"):
        publish(store, name)
    paths, read = [], type(store).read
    monkeypatch.setattr(type(store), "read", lambda self, path: paths.append(path) or read(self, path))
    Releases(store).current()
    assert paths == [commit_path(3), manifest_path(3)]
    paths.clear()
    Releases(store).next_ordinal()
    assert paths == [commit_path(3), manifest_path(3)]
    paths.clear()
    Releases(store).get(1)
    assert paths == [commit_path(1), manifest_path(1)]


def test_other_files_beside_commits_are_ignored(store: Store):
    publish(store, "one")
    for name in ("notes.json", "1.json", "00000002 (copy).json", "old/00000009.json"):
        store.write(f"commits/{name}", b"{}")
    assert [commit.commit for commit in Releases(store).history()] == [1]
    assert publish(store, "two").release == 2


def test_ordinals_of_a_rolled_back_release_are_not_reused(store: Store):
    assert Releases(store).next_ordinal() == 0
    publish(store, "one")
    Releases(store).publish(candidate(store, "two", 1).model_copy(update={"next_ordinal": 7}), str)
    Releases(store).rollback(1)
    current = Releases(store).current()
    assert current is not None
    assert (current.next_ordinal, Releases(store).next_ordinal()) == (1, 7)


def test_a_reserved_number_uses_no_ordinals(store: Store):
    publish(store, "one")
    store.create(
        manifest_path(2),
        candidate(store, "stopped", 1).model_copy(update={"release": 2, "next_ordinal": 9}).to_json(),
    )
    assert Releases(store).next_ordinal() == 1


@pytest.mark.usefixtures("unit_form")
@pytest.mark.parametrize(
    "path",
    [
        "units/corpus/shared.parquet",
        "units/vectors/s/shared.parquet",
        "keys/two/00000.parquet",
        "quarantine/two.parquet",
        "keys/two/corpus.json",
        "encoders/e/config.json",
        "indexes/two.faiss",
    ],
)
def test_a_night_with_pruned_files_publishes_nothing(store: Store, path: str):
    publish(store, "one")
    night = candidate(store, "two", 1)
    store.delete(path)
    with pytest.raises(TransientError, match=rf"{path}.*prune ran during this night; run again"):
        Releases(store).publish(night, str)
    assert not store.exists(manifest_path(2))


@pytest.mark.usefixtures("unit_form")
@pytest.mark.parametrize(
    "path", ["units/corpus/shared.parquet", "keys/two/00000.parquet", "indexes/two.faiss"]
)
def test_a_night_with_truncated_files_publishes_nothing(store: Store, path: str):
    publish(store, "one")
    night = candidate(store, "two", 1)
    content = store.read(path)
    store.write(path, content[:-1])
    size = len(content)
    with pytest.raises(
        TransientError, match=rf"{path}: expected {size} bytes, found {size - 1} bytes; run again"
    ):
        Releases(store).publish(night, str)
    assert not store.exists(manifest_path(2))


@pytest.mark.usefixtures("unit_form")
def test_commits_may_be_in_another_store(store: Store, tmp_path: Path):
    commits = open_store(tmp_path / "elsewhere")
    published = Releases(store, commits).publish(candidate(store, "one", None), str)
    assert commits.exists(commit_path(published.release))
    assert not store.exists(commit_path(published.release))
    current = Releases(store, commits).current()
    assert current == published
