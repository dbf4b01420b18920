"""Readers follow the commit of an erasure: releases have the manifests that it names."""

from hashlib import sha256

import pytest

from pipeline.errors import DataError
from pipeline.log import Stages, listening
from pipeline.store.files.base import Store
from pipeline.store.files.open_store import open_store
from pipeline.store.releases.commits import Commit, commit_path
from pipeline.store.releases.copy_root import copy_root
from pipeline.store.releases.left_out import add_left_out, load_left_out
from pipeline.store.releases.manifest import ReleaseManifest, manifest_path
from pipeline.store.releases.prune import prune
from pipeline.store.releases.release import Releases
from pipeline.store.releases.verify import size_faults
from tests.store.candidates import publish


def erase(releases: Releases, *numbers: int, deletes: bool = True) -> Commit:
    """Give releases manifests with one row less; then delete the old ones."""
    before = [releases.get(number) for number in numbers]
    old = releases.manifest_paths(numbers)
    after = [manifest.model_copy(update={"rows": manifest.rows - 1}) for manifest in before]
    commit = releases.erase(releases.commits.next_number(), "e" * 24, after, "a request")
    assert commit is not None
    for path in old.values() if deletes else ():
        releases.store.delete(path)
    return commit


def rows(releases: Releases, *numbers: int) -> list[int]:
    return [releases.get(number).rows for number in numbers]


@pytest.fixture
def three(store: Store) -> Releases:
    for name in ("one", "two", "three"):
        publish(store, name)
    return Releases(store)


def test_releases_have_the_manifests_that_the_last_erasure_names(three: Releases):
    commit = erase(three, 1, 3)
    fresh = Releases(three.store)
    assert (commit.commit, commit.kind, commit.release) == (4, "erase", 3)
    assert fresh.numbers() == [1, 2, 3]
    assert rows(fresh, 1, 2, 3) == [0, 1, 0]
    erase(fresh, 1, 2)
    assert rows(Releases(three.store), 1, 2, 3) == [-1, 0, 0]
    current = Releases(three.store).current()
    assert current is not None
    assert (current.release, current.rows) == (3, 0)
    assert size_faults(three.store, current) == []


def test_an_erasure_names_the_digests_of_old_and_new_manifests(three: Releases):
    before = {number: three.get(number).to_json() for number in (1, 2)}
    first, second = erase(three, 1, 2), erase(three, 2)
    found = {each.release: each for each in first.rewritten}
    assert found.keys() == {1, 2}
    for number, content in before.items():
        assert found[number].before == sha256(content).hexdigest()
        assert found[number].manifest != manifest_path(number)
    (again,) = second.rewritten
    assert again.before == found[2].sha256, "the digests are a chain"
    assert three.commits.read(4) == first, "the commit is read as it was written"


def test_the_current_release_is_the_new_one_from_the_commit_on(three: Releases):
    erase(three, 2, 3, deletes=False)
    current = Releases(three.store).current()
    assert current is not None
    assert current.rows == 0


def test_a_rollback_after_an_erasure_makes_the_new_manifest_current(three: Releases):
    erase(three, 1, 2, 3, deletes=False)
    commit = Releases(three.store).rollback(1)
    assert commit.kind == "rollback"
    assert commit.rewritten == ()
    assert commit.erasure is None
    current = Releases(three.store).current()
    assert current is not None
    assert (current.release, current.rows) == (1, 0)


def test_an_erasure_does_not_end_a_hold(three: Releases):
    three.hold(2, "until Monday")
    erase(three, 2)
    held = Releases(three.store).commits.hold()
    assert held is not None
    assert (held.release, held.reason) == (2, "until Monday")
    ended = Releases(three.store).unhold()
    assert ended is not None
    assert ended.kind == "unhold"
    assert rows(Releases(three.store), 2) == [0]
    current = Releases(three.store).current()
    assert current is not None
    assert (current.release, current.rows) == (2, 0)


def test_a_commit_made_meanwhile_stops_an_erasure(three: Releases):
    number = three.commits.next_number()
    three.rollback(1)
    assert three.erase(number, "e" * 24, [three.get(1)]) is None
    assert rows(Releases(three.store), 1) == [1]


def test_ordinals_are_read_from_the_new_manifest(three: Releases):
    used = three.next_ordinal()
    erase(three, 1, 2, 3)
    assert Releases(three.store).next_ordinal() == used > 0


def test_prune_keeps_what_the_new_manifests_need(three: Releases):
    erase(three, 1, 2, 3)
    pruned = prune(three, 2, grace_s=0)
    assert (pruned.kept, pruned.removed) == ((2, 3), (1,))
    fresh = Releases(three.store)
    assert fresh.numbers() == [2, 3]
    assert rows(fresh, 2, 3) == [0, 0]
    for number in (2, 3):
        assert size_faults(three.store, fresh.get(number)) == []


def test_prune_refuses_if_the_commit_of_an_erasure_is_damaged(three: Releases):
    erase(three, 1, 2, 3)
    publish(three.store, "four")
    three.store.write("erasures/00000004.json", b"{}")
    three.store.write(commit_path(4), b'{"kind": "erase"}\n')
    with pytest.raises(DataError, match="restore this file"):
        prune(Releases(three.store), 1, grace_s=0)
    assert three.store.exists(manifest_path(5))


def test_a_copy_of_the_current_release_has_the_ids_that_nights_leave_out(
    three: Releases, tmp_path_factory: pytest.TempPathFactory
):
    left_out = add_left_out(three.store, None, ["person-1"])
    assert three.erase(three.commits.next_number(), "e" * 24, [], left_out=left_out) is not None
    new = Releases(open_store(tmp_path_factory.mktemp("copy")))
    copy_root(Releases(three.store), new, Stages(), only_current=True)
    found = load_left_out(new.commits, new.store)
    assert found is not None
    assert "person-1" in found


def test_a_copy_has_the_new_manifests_and_a_later_copy_adds_an_erasure(
    three: Releases, tmp_path_factory: pytest.TempPathFactory
):
    new = Releases(open_store(tmp_path_factory.mktemp("copy")))
    copy_root(three, new, Stages())
    assert rows(new, 1, 2, 3) == [1, 1, 1]
    erase(three, 1, 3)
    with listening() as sentences:
        copied = copy_root(Releases(three.store), Releases(new.store), Stages())
    assert copied.commits == 1
    assert any("rows that were erased since the last copy" in sentence for sentence in sentences)
    fresh = Releases(new.store)
    assert rows(fresh, 2, 3) == [1, 0]
    current: ReleaseManifest | None = fresh.current()
    assert current is not None
    assert (current.release, current.rows) == (3, 0)
