"""A reason cannot forge a line of the output, and files deleted from a release are named."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.store.files.open_store import open_store
from pipeline.store.releases.commits import commit_path
from pipeline.store.releases.release import Releases
from tests.conftest import CommandResult
from tests.store.releases.test_release import publish


def test_a_reason_with_a_line_break_is_printed_on_one_line(
    tmp_path: Path, manta: Callable[..., CommandResult]
):
    root = str(tmp_path / "root")
    release = publish(open_store(root), "one")
    Releases(open_store(root)).hold(release.release, "why\nforged")
    ended = manta("releases", "list", root)
    assert ended.code == 0, ended.err
    assert "why\ufffdforged" in ended.out
    assert "forged" not in ended.out.splitlines()


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A root with two releases."""
    root = str(tmp_path / "root")
    for name in ("one", "two"):
        publish(open_store(root), name)
    return root


@pytest.mark.parametrize("name", ["manifest.json", "report.html"])
@pytest.mark.parametrize("number", [1, 2])
def test_a_deleted_manifest_or_report_is_named(
    root: str, number: int, name: str, manta: Callable[..., CommandResult]
):
    gone = f"releases/{number:08d}/{name}"
    open_store(root).delete(gone)
    listed = manta("releases", "list", root)
    assert f"release {number} is damaged: {gone} is gone" in listed.out
    commits = json.loads(manta("releases", "list", root, "--json").out)["commits"]
    assert [commit["gone"] for commit in commits] == [[gone] if each == number else [] for each in (1, 2)]
    assert not any(commit["pruned"] for commit in commits)
    for arguments in [(root, str(number)), *([(root,)] if number == 2 else [])]:
        verified = manta("releases", "verify", *arguments, "--sizes", "--json")
        facts = json.loads(verified.out)
        assert verified.code == 3, verified.err
        assert not facts["whole"]
        assert gone in [fault["path"] for fault in facts["faults"]]


def test_a_missing_commit_is_listed(root: str, manta: Callable[..., CommandResult]):
    publish(open_store(root), "three")
    open_store(root).delete(commit_path(2))
    listed = manta("releases", "list", root, "--json")
    facts = json.loads(listed.out)
    assert listed.code == 3, listed.err
    assert "expected commit 2 after commit 1, found commit 3" in facts["damage"]
    assert facts["current"] == 3, "readers continue with the last release"


def test_a_pruned_release_is_not_damaged(root: str, manta: Callable[..., CommandResult]):
    assert manta("releases", "prune", root, "--keep", "1", "--grace-hours", "0").code == 0
    listed = manta("releases", "list", root)
    assert "pruned" in listed.out
    assert "damaged" not in listed.out
