"""Damaged, forged and deleted commits are named; they hide no release and free no number."""

import json
from hashlib import sha256

import pytest

from pipeline.config import canonical, digest_of
from pipeline.errors import DataError
from pipeline.log import listening
from pipeline.store.files.base import Store
from pipeline.store.releases.commits import commit_path
from pipeline.store.releases.manifest import manifest_path
from pipeline.store.releases.release import Releases
from tests.store.candidates import candidate, publish


def test_after_a_changed_manifest_the_previous_release_is_current(store: Store):
    publish(store, "one")
    publish(store, "two")
    for number, now_current in ((2, 1), (1, None)):
        manifest = json.loads(store.read(manifest_path(number)))
        store.write(manifest_path(number), json.dumps(manifest | {"rows": 2}).encode())
        with listening() as messages:
            current = Releases(store).current()
        assert (current.release if current else None) == now_current
        assert f"releases/{number:08d}/manifest.json: expected sha256" in messages[-1]
        with pytest.raises(DataError, match=r"manifest\.json.*sha256"):
            Releases(store).get(number)


def test_ordinals_of_a_release_with_a_damaged_commit_are_not_reused(store: Store):
    publish(store, "one")
    releases = Releases(store)
    releases.publish(candidate(store, "two", 1).model_copy(update={"next_ordinal": 7}), str)
    releases.rollback(1)
    content = store.read(commit_path(2))
    assert releases.next_ordinal() == 7
    store.write(commit_path(2), content.replace(b"publish", b"publisH"))
    assert releases.next_ordinal() == 7
    store.write(commit_path(2), content[:40])
    assert releases.next_ordinal() == 1, "a truncated commit has used no ordinals"


def test_a_commit_without_a_reason_has_the_fields_of_earlier_versions(store: Store):
    publish(store, "one")
    commit = json.loads(store.read(commit_path(1)))
    assert set(commit) == {"commit", "kind", "release", "manifest", "sha256", "committed_at", "seal"}
    assert "reason" not in json.loads(Releases(store).hold(1).to_json())
    assert Releases(store).history()[-1] == Releases(store).commits.hold()


@pytest.mark.parametrize("content", [b"{}", None], ids=["junk", "a copy of a commit"])
def test_a_forged_commit_is_named_and_does_not_hide_later_nights(store: Store, content: bytes | None):
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
    with listening() as messages:
        assert Releases(store).get_or_current(None).release == (2 if content else 1)
    assert "the sequence is damaged" in messages[0]
    store.delete(commit_path(99_999_999))
    assert Releases(store).publish(late, str).release == 3
    assert Releases(store).get_or_current(None).release == 3


def test_a_deleted_commit_is_named_and_its_number_not_reused(store: Store):
    for name in ("one", "two", "three"):
        publish(store, name)
    content = store.read(commit_path(2))
    store.delete(commit_path(2))
    with pytest.raises(DataError, match="expected commit 2 after commit 1, found commit 3"):
        publish(store, "four")
    assert Releases(store).get_or_current(None).release == 3, "readers continue with the last release"
    store.create(commit_path(2), content)
    assert publish(store, "four").release == 4
    store.delete(commit_path(1))
    assert publish(store, "five").release == 5, "nothing depends on the first commits"


def test_commits_beyond_the_largest_number_are_refused(store: Store):
    publish(store, "one")
    commit = Releases(store).commits.read(1)
    assert commit is not None
    store.delete(commit_path(1))
    store.create(commit_path(99_999_999), commit.model_copy(update={"commit": 99_999_999}).to_json())
    with pytest.raises(DataError, match="a number below 99999999"):
        publish(store, "two")


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
    for read in (Releases(store).current, lambda: Releases(store).get(2), Releases(store).next_ordinal):
        with pytest.raises(DataError, match=f"expected schema_version 1, found {version!r}; .*{words}"):
            read()
