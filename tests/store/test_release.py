"""One publisher of many wins, what is published never changes, and prune takes nothing that a kept release needs."""

import json
import threading
import time
from hashlib import sha256
from pathlib import Path

import pytest

from pipeline.errors import DataError, PublishConflict, TransientError
from pipeline.log import listening
from pipeline.store.lease import lease, running
from pipeline.store.prune import prune
from pipeline.store.release import EncoderFiles, IndexFiles, ReleaseManifest, Releases, ReleaseUnit, commit_path, manifest_path
from pipeline.store.store import Store, open_store
from pipeline.store.units import Corpus, CorpusUnit, FileRef


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path)


def candidate(store: Store, name: str, parent: int | None, shared: str = "shared") -> ReleaseManifest:
    """A release with files of its own and one unit that it shares with others of the same `shared`."""
    def ref(path: str) -> FileRef:
        store.write(path, path.encode())
        return FileRef(path=path, sha256="0" * 64, rows=1, bytes=len(path))

    text = ref(f"units/corpus/{shared}.parquet")
    row = CorpusUnit(name="0", ordinal=0, path=text.path, rows=1, bytes=1, sha256="0" * 64)
    corpus = Corpus(id=name, digest=name, units=(row,), keys=(ref(f"keys/{name}/00000.parquet"),),
                    quarantine=ref(f"quarantine/{name}.parquet"), counts={"rows": 1, "quarantined": 0})
    store.write(f"keys/{name}/corpus.json", corpus.to_json())
    unit = ReleaseUnit(ordinal=0, path=ref(f"units/vectors/s/{shared}.parquet").path, rows=1, sha256="0" * 64, space_id="s", numerics_id="n", corpus=text,
                       record=ref(f"units/vectors/s/{shared}.json").path, moments=ref(f"moments/s/{shared}.safetensors"))
    return ReleaseManifest(
        parent=parent, space_id="s", numerics={"n": 1}, rows=1, units=(unit,), next_ordinal=1, ids=(ref(f"ids/{name}.arrow"),),
        moments=ref(f"moments/{name}.safetensors"),
        index=IndexFiles(kind="flat", factory="Flat", dim=2, files=(ref(f"indexes/{name}.faiss"),)), transform=ref(f"transforms/{name}.safetensors"),
        encoder=EncoderFiles(path="encoders/e", files=(ref("encoders/e/config.json").model_copy(update={"path": "config.json"}),)),
        corpus=FileRef(path=f"keys/{name}/corpus.json", sha256=sha256(corpus.to_json()).hexdigest()),
    )


def publish(store: Store, name: str, shared: str = "shared") -> ReleaseManifest:
    releases = Releases(store)
    current = releases.current()
    return releases.publish(candidate(store, name, current.release if current else None, shared), lambda number: f"<html>{number}")


def test_releases_count_from_one_and_the_last_is_current(store: Store):
    assert Releases(store).current() is None
    assert [publish(store, name).release for name in ("one", "two")] == [1, 2]
    current = Releases(store).current()
    assert current is not None
    assert (current.release, current.parent) == (2, 1)
    assert store.read("releases/00000002/report.html") == b"<html>2"


def test_two_publishers_at_once_leave_one_release(store: Store):
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


def test_a_night_that_is_overtaken_changes_nothing(store: Store):
    late = candidate(store, "late", None)
    publish(store, "early")
    before = {entry.path for entry in store.list()}
    with pytest.raises(PublishConflict, match="release 1 was published by another run"):
        Releases(store).publish(late, str)
    assert {entry.path for entry in store.list()} == before


def test_a_number_reserved_by_a_run_that_died_is_skipped_for_ever(store: Store, monkeypatch: pytest.MonkeyPatch):
    dead = candidate(store, "dead", None).model_copy(update={"release": 1})
    store.create(manifest_path(1), dead.to_json())
    monkeypatch.setattr("pipeline.store.release._GRACE_S", 0.3)
    assert publish(store, "alive").release == 2
    assert not store.create(commit_path(1), b"the dead run wakes up"), "its number is used up"
    current = Releases(store).current()
    assert current is not None
    assert current.release == 2


def test_a_run_stopped_between_manifest_and_commit_goes_on_with_its_number(store: Store):
    mine = candidate(store, "mine", None)
    store.create(manifest_path(1), mine.model_copy(update={"release": 1}).to_json())
    assert Releases(store).publish(mine, str).release == 1


def test_rollback_is_a_commit_and_the_next_release_builds_on_it(store: Store):
    publish(store, "one")
    publish(store, "two")
    commit = Releases(store).rollback(1)
    assert commit.commit == 3
    current = Releases(store).current()
    assert current is not None
    assert current.release == 1
    three = publish(store, "four")
    assert (three.release, three.parent) == (4, 1)


def test_rollback_to_what_is_not_there_names_what_is(store: Store):
    publish(store, "one")
    with pytest.raises(DataError, match=r"release 7.*there are: 1"):
        Releases(store).rollback(7)


def test_a_changed_manifest_is_refused_and_the_release_before_it_is_current(store: Store):
    publish(store, "one")
    publish(store, "two")
    for number, now_current in ((2, 1), (1, None)):
        manifest = json.loads(store.read(manifest_path(number)))
        store.write(manifest_path(number), json.dumps(manifest | {"rows": 2}).encode())
        with listening() as said:
            current = Releases(store).current()
        assert (current.release if current else None) == now_current
        assert f"releases/{number:08d}/manifest.json: expected sha256" in said[-1]
        with pytest.raises(DataError, match=r"manifest\.json.*sha256"):
            Releases(store).get(number)


def test_only_the_commits_asked_for_are_read(store: Store, monkeypatch: pytest.MonkeyPatch):
    for name in ("one", "two", "three"):
        publish(store, name)
    read, reading = [], type(store).read
    monkeypatch.setattr(type(store), "read", lambda self, path: read.append(path) or reading(self, path))
    Releases(store).current()
    assert read == [commit_path(3), manifest_path(3)]
    read.clear()
    Releases(store).get(1)
    assert read == [commit_path(1), manifest_path(1)]


def test_what_else_lies_beside_the_commits_is_ignored(store: Store):
    publish(store, "one")
    for name in ("notes.json", "1.json", "00000002 (copy).json", "old/00000009.json"):
        store.write(f"commits/{name}", b"{}")
    assert [commit.commit for commit in Releases(store).history()] == [1]
    assert publish(store, "two").release == 2


def test_ordinals_of_a_release_that_was_rolled_back_are_not_used_again(store: Store):
    assert Releases(store).next_ordinal() == 0
    publish(store, "one")
    Releases(store).publish(candidate(store, "two", 1).model_copy(update={"next_ordinal": 7}), str)
    Releases(store).rollback(1)
    current = Releases(store).current()
    assert current is not None
    assert (current.next_ordinal, Releases(store).next_ordinal()) == (1, 7)


def test_a_number_that_was_only_reserved_has_used_no_ordinals(store: Store):
    publish(store, "one")
    store.create(manifest_path(2), candidate(store, "stopped", 1).model_copy(update={"release": 2, "next_ordinal": 9}).to_json())
    assert Releases(store).next_ordinal() == 1


@pytest.mark.parametrize("path", [
    "units/corpus/shared.parquet", "units/vectors/s/shared.parquet", "keys/two/00000.parquet", "quarantine/two.parquet", "keys/two/corpus.json",
    "encoders/e/config.json", "indexes/two.faiss",
])
def test_a_night_whose_files_were_pruned_publishes_nothing(store: Store, path: str):
    publish(store, "one")
    night = candidate(store, "two", 1)
    store.delete(path)
    with pytest.raises(TransientError, match=rf"{path}.*a prune ran beside this night; run again"):
        Releases(store).publish(night, str)
    assert not store.exists(manifest_path(2))


def test_commits_may_live_in_another_store(store: Store, tmp_path: Path):
    commits = open_store(tmp_path / "elsewhere")
    published = Releases(store, commits).publish(candidate(store, "one", None), str)
    assert commits.exists(commit_path(published.release))
    assert not store.exists(commit_path(published.release))
    current = Releases(store, commits).current()
    assert current == published


def test_prune_keeps_all_that_a_kept_release_needs(store: Store):
    for name, shared in (("one", "old"), ("two", "shared"), ("three", "shared")):
        publish(store, name, shared)
    pruned = prune(Releases(store), keep=1)
    assert (pruned.kept, pruned.removed) == ((3,), (1, 2))
    left = {entry.path for entry in store.list()}
    assert Releases(store).get(3).paths() <= left, "all of release 3 is there"
    assert not {path for path in left if "old" in path or "one" in path or "two" in path}
    assert Releases(store).numbers() == [3]
    with pytest.raises(DataError, match="release 1"):
        Releases(store).rollback(1)


def test_prune_spares_what_a_running_night_has_just_written(store: Store):
    publish(store, "one")
    store.write("units/vectors/s/tonight.parquet", b"not in any release yet")
    assert prune(Releases(store), keep=1).files == 0
    assert prune(Releases(store), keep=1, now=time.time() + 48 * 3600).files == 1
    assert not store.exists("units/vectors/s/tonight.parquet")


def test_prune_keeps_the_current_release_after_a_rollback(store: Store):
    for name in ("one", "two", "three"):
        publish(store, name, name)
    Releases(store).rollback(1)
    assert prune(Releases(store), keep=2).kept == (1, 3)
    current = Releases(store).current()
    assert current is not None
    assert current.release == 1


def test_prune_waits_for_a_night_that_is_at_work(store: Store):
    publish(store, "one")
    with lease(store):
        with pytest.raises(TransientError, match=r"no night at work.*started_at") as caught:
            prune(Releases(store), keep=1)
        assert caught.value.exit_code == 75
        assert prune(Releases(store), keep=1, ignore_leases=True).kept == (1,)
        assert running(store, now=time.time() + 3600) == [], "the lease of a run that was killed ends"
    assert running(store) == []
    assert prune(Releases(store), keep=1).kept == (1,)
