"""One publisher of many wins, what is published never changes, and prune takes nothing that a kept release
needs.
"""

import json
import threading
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from pipeline.config import canonical, digest_of
from pipeline.errors import ConfigError, DataError, PublishConflict, RootHeld, TransientError
from pipeline.log import listening
from pipeline.store.base import Store
from pipeline.store.commits import commit_path
from pipeline.store.lease import lease, running
from pipeline.store.manifest import EncoderFiles, IndexFiles, ReleaseManifest, ReleaseUnit, manifest_path
from pipeline.store.prune import prune
from pipeline.store.release import Releases
from pipeline.store.store import open_store
from pipeline.store.stored import FileRef
from pipeline.store.units import Corpus, CorpusUnit
from tests.conftest import Ended


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
    corpus = Corpus(
        id=name,
        digest=name,
        units=(row,),
        keys=(ref(f"keys/{name}/00000.parquet"),),
        quarantine=ref(f"quarantine/{name}.parquet"),
        counts={"rows": 1, "quarantined": 0},
    )
    store.write(f"keys/{name}/corpus.json", corpus.to_json())
    unit = ReleaseUnit(
        ordinal=0,
        path=ref(f"units/vectors/s/{shared}.parquet").path,
        rows=1,
        sha256="0" * 64,
        space_id="s",
        numerics_id="n",
        corpus=text,
        record=ref(f"units/vectors/s/{shared}.json").path,
        moments=ref(f"moments/s/{shared}.safetensors"),
    )
    return ReleaseManifest(
        parent=parent,
        space_id="s",
        numerics={"n": 1},
        rows=1,
        units=(unit,),
        next_ordinal=1,
        ids=(ref(f"ids/{name}.arrow"),),
        moments=ref(f"moments/{name}.safetensors"),
        index=IndexFiles(kind="flat", factory="Flat", dim=2, files=(ref(f"indexes/{name}.faiss"),)),
        transform=ref(f"transforms/{name}.safetensors"),
        encoder=EncoderFiles(
            path="encoders/e",
            files=(ref("encoders/e/config.json").model_copy(update={"path": "config.json"}),),
        ),
        corpus=FileRef(path=f"keys/{name}/corpus.json", sha256=sha256(corpus.to_json()).hexdigest()),
    )


def publish(store: Store, name: str, shared: str = "shared") -> ReleaseManifest:
    releases = Releases(store)
    current = releases.current()
    return releases.publish(
        candidate(store, name, current.release if current else None, shared), lambda number: f"<html>{number}"
    )


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


def test_a_number_reserved_by_a_run_that_died_is_skipped_for_ever(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
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
    with pytest.raises(DataError, match=r"release 7.*the existing releases are: 1"):
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
    store.create(
        manifest_path(2),
        candidate(store, "stopped", 1).model_copy(update={"release": 2, "next_ordinal": 9}).to_json(),
    )
    assert Releases(store).next_ordinal() == 1


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
def test_a_night_whose_files_were_pruned_publishes_nothing(store: Store, path: str):
    publish(store, "one")
    night = candidate(store, "two", 1)
    store.delete(path)
    with pytest.raises(TransientError, match=rf"{path}.*prune ran during this night; run again"):
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
    assert {file.path for file in Releases(store).get(3).references()} <= left, "all of release 3 is there"
    assert not {path for path in left if "old" in path or "one" in path or "two" in path}
    assert Releases(store).numbers() == [3]
    with pytest.raises(DataError, match="release 1"):
        Releases(store).rollback(1)


def test_prune_spares_what_a_running_night_has_just_written(store: Store):
    publish(store, "one")
    store.write("units/vectors/s/tonight.parquet", b"not in any release yet")
    assert prune(Releases(store), keep=1).files == 0
    assert prune(Releases(store), keep=1, grace_s=-60).files == 1
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
        with pytest.raises(TransientError, match=r"no running night.*started_at") as caught:
            prune(Releases(store), keep=1)
        assert caught.value.exit_code == 75
        assert prune(Releases(store), keep=1, ignore_leases=True).kept == (1,)
        assert running(store, now=time.time() + 3600) == [], "the lease of a run that was killed ends"
    assert running(store) == []
    assert prune(Releases(store), keep=1).kept == (1,)


def test_a_hold_keeps_its_release_current_until_it_ends(store: Store):
    publish(store, "one")
    publish(store, "two")
    held = Releases(store).hold(1, "a bad delivery")
    assert (held.commit, held.kind, held.release, held.reason) == (3, "hold", 1, "a bad delivery")
    late = candidate(store, "late", 1)
    with pytest.raises(RootHeld, match=r"release 1 is held since .* \(a bad delivery\)") as caught:
        Releases(store).publish(late, str)
    assert caught.value.exit_code == 0
    assert f"`manta releases release {store.uri}`" in str(caught.value)
    assert not store.exists(manifest_path(4))
    assert Releases(store).current() == Releases(store).get(1)
    assert Releases(store).hold(1).commit == 3, "once"
    for change in (Releases(store).rollback, Releases(store).hold):
        with pytest.raises(
            ConfigError, match=r"release 2: expected a root that is not held, found release 1 held since"
        ):
            change(2)
    ended = Releases(store).unhold()
    assert ended is not None
    assert (ended.commit, ended.release, ended.reason) == (4, 1, "")
    assert Releases(store).unhold() is None
    assert Releases(store).publish(late, str).release == 5


def test_a_hold_that_comes_while_a_night_publishes_wins_or_holds_what_it_published(store: Store):
    """Both want the next number of the sequence, which is created once."""
    publish(store, "one")
    outcomes = set()
    for turn in range(8):
        night = candidate(store, f"night {turn}", Releases(store).chosen(None).release)
        found: list[str] = []

        def run(night: ReleaseManifest = night, found: list[str] = found) -> None:
            try:
                found.append(f"published {Releases(store).publish(night, str).release}")
            except RootHeld:
                found.append("held")

        thread = threading.Thread(target=run)
        thread.start()
        held = Releases(store).hold()
        thread.join()
        current = Releases(store).chosen(None).release
        assert current == held.release
        assert found in (["held"], [f"published {current}"])
        outcomes.add(found[0].split()[0])
        Releases(store).unhold()
    assert outcomes


def test_ordinals_of_a_release_with_a_damaged_commit_are_not_given_again(store: Store):
    publish(store, "one")
    releases = Releases(store)
    releases.publish(candidate(store, "two", 1).model_copy(update={"next_ordinal": 7}), str)
    releases.rollback(1)
    content = store.read(commit_path(2))
    assert releases.next_ordinal() == 7
    store.write(commit_path(2), content.replace(b"publish", b"publisH"))
    assert releases.next_ordinal() == 7
    store.write(commit_path(2), content[:40])
    assert releases.next_ordinal() == 1, "a commit that was cut off has used none"


def test_commits_of_nights_have_the_bytes_that_they_always_had(store: Store):
    publish(store, "one")
    commit = json.loads(store.read(commit_path(1)))
    assert set(commit) == {"commit", "kind", "release", "manifest", "sha256", "committed_at", "seal"}
    assert "reason" not in json.loads(Releases(store).hold(1).to_json())
    assert Releases(store).history()[-1] == Releases(store).commits.hold()


@pytest.mark.parametrize("content", [b"{}", None], ids=["junk", "a copy of a commit"])
def test_a_forged_commit_is_named_and_makes_no_later_night_invisible(store: Store, content: bytes | None):
    publish(store, "one")
    publish(store, "two")
    forged = Releases(store).commits.read(1)
    assert forged is not None
    store.create(
        commit_path(99_999_999), content or forged.model_copy(update={"commit": 99_999_999}).to_json()
    )
    late = candidate(store, "late", 2)
    for change in (
        lambda: Releases(store).publish(late, str),
        lambda: Releases(store).rollback(1),
        lambda: Releases(store).hold(1),
    ):
        with pytest.raises(
            DataError,
            match=r"expected commit 3 after commit 2, found commit 99999999.*delete commits/99999999\.json",
        ):
            change()
    with listening() as said:
        assert Releases(store).chosen(None).release == (2 if content else 1)
    assert "the sequence is damaged" in said[0]
    store.delete(commit_path(99_999_999))
    assert Releases(store).publish(late, str).release == 3
    assert Releases(store).chosen(None).release == 3


def test_a_commit_that_was_deleted_is_named_and_its_number_is_not_taken_again(store: Store):
    for name in ("one", "two", "three"):
        publish(store, name)
    content = store.read(commit_path(2))
    store.delete(commit_path(2))
    with pytest.raises(DataError, match="expected commit 2 after commit 1, found commit 3"):
        publish(store, "four")
    assert Releases(store).chosen(None).release == 3, "readers go on"
    store.create(commit_path(2), content)
    assert publish(store, "four").release == 4
    store.delete(commit_path(1))
    assert publish(store, "five").release == 5, "nothing depends on the first commits"


def test_no_commit_comes_after_the_last_number(store: Store):
    publish(store, "one")
    only = Releases(store).commits.read(1)
    assert only is not None
    store.delete(commit_path(1))
    store.create(commit_path(99_999_999), only.model_copy(update={"commit": 99_999_999}).to_json())
    with pytest.raises(DataError, match="a number that a later commit can exceed"):
        publish(store, "two")


def test_a_damaged_hold_still_holds_and_a_cut_off_one_never_did(store: Store, manta: Callable[..., Ended]):
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
                DataError, match=r"00000003\.json: expected a readable commit.*restore it from a copy"
            ):
                change()
        assert {entry.path for entry in store.list()} == before
        with listening() as said:
            assert releases.chosen(None).release == 2, "readers go on"
        assert "00000003.json is skipped" in said[0]
        listed = manta("releases", "list", store.uri)
        assert (listed.code, "a readable commit" in listed.out) == (3, True)
    store.write(commit_path(hold.commit), content)
    with pytest.raises(RootHeld):
        Releases(store).publish(late, str)
    store.write(commit_path(hold.commit), content[:40])
    assert Releases(store).publish(late, str).release == 4


@pytest.mark.parametrize(
    ("version", "words"),
    [
        (2, "written by a newer version: update this one"),
        (99, "a newer version"),
        (-1, "restore it, or roll back"),
        ("1", "restore it"),
        (True, "restore it"),
        (1.0, "restore it"),
    ],
)
def test_a_manifest_of_another_schema_is_refused(store: Store, version: object, words: str):
    publish(store, "one")
    two = publish(store, "two")
    value = two.model_dump(mode="json") | {"schema_version": version, "unheard_of": True}
    content = canonical(value | {"seal": digest_of(value)})
    store.write(manifest_path(2), content)
    commit = Releases(store).commits.read(2)
    assert commit is not None
    store.write(commit_path(2), commit.model_copy(update={"sha256": sha256(content).hexdigest()}).to_json())
    for reading in (Releases(store).current, lambda: Releases(store).get(2), Releases(store).next_ordinal):
        with pytest.raises(DataError, match=f"expected schema_version 1, found {version!r}; .*{words}"):
            reading()


def test_a_dry_run_of_prune_names_what_prune_then_removes(store: Store):
    for name, shared in (("one", "old"), ("two", "shared"), ("three", "shared")):
        publish(store, name, shared)
    before = {entry.path: entry.size for entry in store.list()}
    planned = prune(Releases(store), keep=1, dry_run=True)
    assert {entry.path: entry.size for entry in store.list()} == before
    done = prune(Releases(store), keep=1)
    removed = before.keys() - {entry.path for entry in store.list()}
    assert planned.dry_run
    assert (planned.kept, planned.removed, planned.files, planned.bytes) == (
        done.kept,
        done.removed,
        done.files,
        done.bytes,
    )
    assert (planned.files, planned.bytes) == (len(removed), sum(before[path] for path in removed))
    assert planned.samples.items() <= {path: before[path] for path in removed}.items()
    assert sum(planned.folders.values()) == planned.bytes


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: content.replace(b"publish", b"publisH"),
        lambda _: b"",
    ],
)
def test_prune_keeps_what_a_release_with_a_damaged_commit_needs(
    store: Store, capsys: pytest.CaptureFixture[str], damage: Callable[[bytes], bytes]
):
    manifests = [publish(store, name, name) for name in ("one", "two", "three")]
    whole = {
        entry.path for entry in store.list() if "one" not in entry.path and "/00000001" not in entry.path
    }
    store.write(commit_path(3), damage(store.read(commit_path(3))))
    assert prune(Releases(store), keep=1, grace_s=-60).kept == (2,)
    assert {path for path in whole if not store.exists(path)} == set()
    assert "release 3 are kept; restore the commit from a copy" in capsys.readouterr().err
    store.write(manifest_path(3), b"damaged too")
    with pytest.raises(DataError, match="manifest"):
        prune(Releases(store), keep=1, grace_s=-60)
    assert all(store.exists(file.path) for file in manifests[2].references())
