"""If files can be created once only in the store of commits, one publisher of many still wins, and the
committed manifest is the stored one.
"""

import json
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import pytest

from pipeline.errors import PublishConflict
from pipeline.store.files.open_store import open_store
from pipeline.store.releases.commits import commit_path
from pipeline.store.releases.manifest import manifest_path
from pipeline.store.releases.prune import prune
from pipeline.store.releases.release import Releases
from tests.faults import Faults, FaultyProxy
from tests.store.candidates import candidate


@pytest.fixture
def releases(faulty: FaultyProxy, s3: str, tmp_path: Path) -> Releases:
    """Releases in a store that ignores conditions and sometimes fails, with their commits in a directory."""
    faulty.faults = Faults(drops_conditions=True, throttled=0.02, lost=0.05, seed=0)
    return Releases(open_store(f"{s3}/{tmp_path.name}"), open_store(tmp_path / "commits"))


def manifest_matches_commit(releases: Releases, number: int) -> bool:
    """Return whether the stored manifest has the sha256 of its commit."""
    commit = json.loads(releases.commits.store.read(commit_path(number)))
    return bool(commit["sha256"] == sha256(releases.store.read(manifest_path(number))).hexdigest())


def test_one_of_several_concurrent_publishers_wins(releases: Releases):
    def run(name: str) -> str:
        try:
            return f"published {releases.publish(candidate(releases.store, name, None), str).release}"
        except PublishConflict as conflict:
            return f"lost to {conflict.number}"

    with ThreadPoolExecutor(4) as pool:
        outcomes = sorted(pool.map(run, "abcd"))
    assert outcomes == ["lost to 1", "lost to 1", "lost to 1", "published 1"]
    assert manifest_matches_commit(releases, 1)
    current = releases.current()
    assert current is not None
    assert current.release == 1


def test_a_publisher_stopped_before_its_commit_leaves_its_number_unused(
    releases: Releases, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("pipeline.store.releases.release._RESERVATION_S", 0.2)
    stopped = candidate(releases.store, "stopped", None).model_copy(update={"release": 1})
    assert releases._store_manifest(stopped)
    assert releases.publish(candidate(releases.store, "next", None), str).release == 2
    assert manifest_matches_commit(releases, 2)
    assert [commit.release for commit in releases.history()] == [2]


def test_rollback_and_prune_use_the_separate_commits(releases: Releases):
    for number, parent in ((1, None), (2, 1), (3, 2)):
        assert releases.publish(candidate(releases.store, str(number), parent), str).release == number
    assert releases.rollback(2).commit == 4
    assert prune(releases, keep=1, grace_s=0).kept == (2,)
    current = releases.current()
    assert current is not None
    assert (current.release, releases.numbers()) == (2, [2])
    assert manifest_matches_commit(releases, 2)
    assert releases.store.list("commits") == []
