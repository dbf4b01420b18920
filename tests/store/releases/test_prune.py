"""Prune deletes no file that a kept release or a running night needs."""

import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from pipeline.errors import ConfigError, DataError, TransientError
from pipeline.store.files.base import Entry, Store
from pipeline.store.files.lease import SERVED, active_leases, lease
from pipeline.store.files.local import LocalStore
from pipeline.store.records.units import Corpus, TableBucket
from pipeline.store.releases.commits import commit_path
from pipeline.store.releases.manifest import manifest_path
from pipeline.store.releases.prune import prune
from pipeline.store.releases.release import Releases
from pipeline.store.releases.verify import files_of
from tests.store.candidates import candidate, publish

pytestmark = pytest.mark.usefixtures("unit_form", "small_pages")


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """List the files of a folder in pages of three."""
    monkeypatch.setattr("pipeline.store.files.local._PAGE", 3)


def test_prune_keeps_every_file_of_a_kept_release(store: Store):
    for name, shared in (("one", "old"), ("two", "shared"), ("three", "shared")):
        publish(store, name, shared)
    pruned = prune(Releases(store), keep=1)
    assert (pruned.kept, pruned.removed) == ((3,), (1, 2))
    remaining = {entry.path for entry in store.list()}
    needed = {file.path for file in files_of(store, Releases(store).get(3))}
    assert needed <= remaining, "all of release 3 is there"
    assert not {path for path in remaining if "old" in path or "one" in path or "two" in path}
    assert Releases(store).numbers() == [3]
    with pytest.raises(DataError, match="release 1"):
        Releases(store).rollback(1)


def test_prune_keeps_bases_and_deltas_in_folders_of_removed_releases(store: Store):
    for name in ("one", "two"):
        publish(store, name)
    third = candidate(store, "three", 2)
    corpus = Corpus.read(store, third.corpus)
    base, delta = (Corpus.read(store, Releases(store).get(number).corpus).keys[0].base for number in (1, 2))
    bucket = TableBucket(**dict(base), deltas=(delta,))
    content = corpus.model_copy(update={"keys": (bucket,)}).to_json()
    store.write(third.corpus.path, content)
    reference = third.corpus.model_copy(update={"sha256": sha256(content).hexdigest()})
    Releases(store).publish(third.model_copy(update={"corpus": reference}), str)
    assert prune(Releases(store), keep=1).removed == (1, 2)
    remaining = {entry.path for entry in store.list("keys")}
    assert remaining >= {third.corpus.path, "keys/one/00000.parquet", "keys/two/00000.parquet"}
    assert not {"keys/one/corpus.json", "keys/two/corpus.json"} & remaining


def test_prune_keeps_recent_files_of_a_running_night(store: Store):
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


def test_prune_is_refused_during_a_night(store: Store):
    publish(store, "one")
    with lease(store):
        with pytest.raises(TransientError, match=r"no running night.*started_at") as caught:
            prune(Releases(store), keep=1)
        assert caught.value.exit_code == 75
        assert prune(Releases(store), keep=1, ignore_leases=True).kept == (1,)
        assert active_leases(store, now=time.time() + 3600) == [], "the lease of a run that was killed ends"
    assert active_leases(store) == []
    assert prune(Releases(store), keep=1).kept == (1,)


@pytest.mark.parametrize("folder", ["exports/0123456789ab", "duplicates/leases"])
def test_prune_is_refused_during_commands_that_read_old_releases(store: Store, folder: str):
    for name in ("one", "two"):
        publish(store, name, name)
    with lease(store, folder):
        with pytest.raises(TransientError, match=rf"export or search for duplicates, found {folder}/lease-"):
            prune(Releases(store), keep=1)
        assert Releases(store).numbers() == [1, 2]
    assert prune(Releases(store), keep=1).removed == (1,)


def test_prune_keeps_what_users_export_into_the_folder_of_leases(store: Store):
    publish(store, "one")
    change_sets = [
        f"exports/{name}/{file}"
        for name in ("docs", "lease-docs", "0123456789ab")
        for file in ("progress.json", "00000001/manifest.json", "00000001/upserts-0.parquet")
    ]
    for path in change_sets:
        store.write(path, b"of a user")
    killed = "exports/0123456789ab/lease-fedcba.json"
    store.write(killed, b"expired")
    assert prune(Releases(store), keep=1, grace_s=-60, ignore_leases=True).folders == {"exports": 7}
    assert {entry.path for entry in store.list("exports")} == set(change_sets)
    assert prune(Releases(store), keep=1).kept == (1,), "a change set is no lease"


class EndingStore(LocalStore):
    """A store in which commands end as soon as their leases are listed."""

    ending: tuple[str, ...] = ()

    def list(self, prefix: str = "", suffix: str = "") -> list[Entry]:
        """List the files, and delete those of commands that end."""
        entries = super().list(prefix, suffix)
        for path in self.ending if prefix == "exports" else ():
            self.delete(path)
        return entries


def test_prune_goes_on_if_a_command_ends_after_its_lease_was_listed(tmp_path: Path):
    store, paths = EndingStore(str(tmp_path)), [f"exports/docs/lease-{number}.json" for number in (1, 2)]
    publish(store, "one")
    for path in paths:
        store.write(path, b"of an export")
    store.ending = (paths[0],)
    with pytest.raises(TransientError, match=rf"found {paths[1]}: of an export"):
        prune(Releases(store), keep=1)
    store.write(paths[0], b"of an export")
    store.ending = tuple(paths)
    assert prune(Releases(store), keep=1).kept == (1,)


def test_a_dry_run_of_prune_lists_the_files_that_prune_removes(store: Store):
    for name, shared in (("one", "old"), ("two", "shared"), ("three", "shared")):
        publish(store, name, shared)
    before = {entry.path: entry.size for entry in store.list()}
    planned = prune(Releases(store), keep=1, dry_run=True)
    assert {entry.path: entry.size for entry in store.list()} == before
    pruned = prune(Releases(store), keep=1)
    removed = before.keys() - {entry.path for entry in store.list()}
    assert planned.dry_run
    assert (planned.kept, planned.removed, planned.files, planned.bytes) == (
        pruned.kept,
        pruned.removed,
        pruned.files,
        pruned.bytes,
    )
    assert (planned.files, planned.bytes) == (len(removed), sum(before[path] for path in removed))
    assert planned.samples
    assert planned.samples.items() <= {path: before[path] for path in removed}.items()
    assert sum(planned.folders.values()) == planned.bytes


def test_a_dry_run_of_prune_needs_no_writable_root(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    for name in ("one", "two"):
        publish(store, name, name)
    expected = prune(Releases(store), keep=1, dry_run=True)

    def refuse(path: str, data: bytes) -> None:
        raise ConfigError(path, "a writable folder", "a read-only one", "check its permissions")

    monkeypatch.setattr(store, "write", refuse)
    assert prune(Releases(store), keep=1, dry_run=True) == expected
    assert "measured by the clock of this machine" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="a writable folder"):
        prune(Releases(store), keep=1)


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: content.replace(b"publish", b"publisH"),
        lambda _: b"",
    ],
)
def test_prune_keeps_every_file_of_a_release_with_a_damaged_commit(
    store: Store, capsys: pytest.CaptureFixture[str], damage: Callable[[bytes], bytes]
):
    manifests = [publish(store, name, name) for name in ("one", "two", "three")]
    files = [{file.path for file in files_of(store, manifest)} for manifest in manifests]
    only_of_one = files[0] - files[1] - files[2]
    expected = {entry.path for entry in store.list() if "/00000001" not in entry.path} - only_of_one
    store.write(commit_path(3), damage(store.read(commit_path(3))))
    assert prune(Releases(store), keep=1, grace_s=-60).kept == (2,)
    assert {path for path in expected if not store.exists(path)} == set()
    assert "release 3 are kept; restore the commit from a copy" in capsys.readouterr().err
    store.write(manifest_path(3), b"damaged too")
    with pytest.raises(DataError, match="manifest"):
        prune(Releases(store), keep=1, grace_s=-60)
    assert all(store.exists(file.path) for file in files_of(store, manifests[2]))


def test_prune_removes_nothing_while_a_commit_is_missing(store: Store):
    for name in ("one", "two", "three"):
        publish(store, name)
    missing = store.read(commit_path(2))
    store.delete(commit_path(2))
    before = {entry.path for entry in store.list()}
    for dry_run in (True, False):
        with pytest.raises(
            DataError, match=r"expected commit 2 after commit 1.*nothing is published or pruned"
        ):
            prune(Releases(store), keep=1, grace_s=-60, dry_run=dry_run)
    assert {entry.path for entry in store.list()} == before
    store.write(commit_path(2), missing)
    assert prune(Releases(store), keep=1, grace_s=-60).removed == (1, 2)


def test_prune_keeps_a_release_as_long_as_it_is_served(store: Store, capsys: pytest.CaptureFixture[str]):
    for name in ("one", "two", "three"):
        publish(store, name)
    releases = Releases(store)
    needed = {file.path for file in files_of(store, releases.get(1))}
    store.write("served/notes.txt", b"a file of the user")
    with lease(store, SERVED, release=1) as path:
        pruned = prune(releases, keep=1, grace_s=-60)
        assert (pruned.kept, pruned.removed) == ((1, 3), (2,))
        assert "release 1 is kept as long as it is served: process" in capsys.readouterr().err
        assert needed | {path, "served/notes.txt"} <= {entry.path for entry in store.list()}
    assert prune(releases, keep=1).removed == (1,)
    assert not store.exists(path)
    assert not store.exists("indexes/one.faiss")


def test_an_edited_lease_of_a_service_stops_prune_unless_leases_are_ignored(store: Store):
    for name in ("one", "two"):
        publish(store, name)
    with lease(store, SERVED, release="one") as path:
        whole = store.read(path)
        for content in (whole, whole[:-1], b"", b"\xff"):
            store.write(path, content)
            with pytest.raises(TransientError, match="a lease that names the release of a service"):
                prune(Releases(store), keep=1)
        assert prune(Releases(store), keep=1, ignore_leases=True).removed == (1,)
