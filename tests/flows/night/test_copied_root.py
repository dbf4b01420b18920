"""A copy of a root, in another store and back on disk, is used as the root itself: by nights, searches,
rollbacks and checks.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.flows.night.nightly import nightly
from pipeline.index.search.search import open_release
from pipeline.log import Stages
from pipeline.settings import Job
from tests.conftest import CommandResult
from tests.flows.conftest import job_arguments

Make = Callable[..., Job]
QUICK = ("whiten.mode=on", "index.kind=IVF8,Flat", "index.on_disk=always", "gates.recall_at_10=")
QUERIES = ["a man reads", "the lazy dog sleeps near the river"]
pytestmark = pytest.mark.usefixtures("cluster")


def add_rows(folder: Path, number: int) -> None:
    """Add a file with one row to the corpus."""
    table = pa.table({"id": [f"new-{number}"], "text": [f"a new man reads {number}"], "lang": ["en"]})
    pq.write_table(table, folder / "corpus" / f"part-{10 + number}.parquet")


@pytest.mark.slow
def test_a_root_that_moves_to_s3_and_back_is_used_as_before(
    make_job: Make, manta: Callable[..., CommandResult], s3: str, cache: Path, tmp_path: Path, encoder: Path
):
    def answers(root: str, number: int | None = None) -> list[dict[str, object]]:
        found: list[dict[str, object]] = open_release(root, number).search(QUERIES, 10).to_pylist()
        return found

    nightly(make_job(*QUICK), Stages())
    add_rows(tmp_path, 1)
    nightly(make_job(*QUICK), Stages())
    root, remote, back = str(tmp_path / "releases"), f"{s3}/{tmp_path.name}", str(tmp_path / "back")
    copied = manta("releases", "copy", root, remote)
    assert copied.code == 0
    assert f"{remote}: release 2 is current, of 2 releases; " in copied.out
    assert answers(remote) == answers(root)
    assert answers(remote, 1) == answers(root, 1)

    there = [*job_arguments(tmp_path, encoder), *QUICK, f"release.root={remote}"]
    assert json.loads(manta("nightly", "--json", *there).out)["status"] == "unchanged"
    add_rows(tmp_path, 2)
    published = json.loads(manta("nightly", "--json", *there).out)
    assert (published["status"], published["release"], published["counts"]["encoded"]) == ("published", 3, 1)
    assert manta("releases", "rollback", remote, "1").code == 0
    for number in ("1", "2", "3"):
        assert manta("releases", "verify", remote, number).code == 0

    copied = manta("releases", "copy", "--json", remote, back)
    assert json.loads(copied.out)["current"] == 1
    assert answers(back) == answers(root, 1)
    assert answers(back, 3) == answers(remote, 3)
    assert manta("releases", "verify", back, "3").code == 0
    here = [*job_arguments(tmp_path, encoder), *QUICK, f"release.root={back}"]
    assert json.loads(manta("nightly", "--json", *here).out)["release"] == 5
    assert answers(back) == answers(remote, 3)
    refused = manta("releases", "copy", remote, back)
    assert refused.code == 2
    assert "commits/00000005.json" in refused.err


@pytest.mark.slow
def test_a_copy_of_the_current_release_is_a_root_of_one_release(
    make_job: Make, manta: Callable[..., CommandResult], tmp_path: Path
):
    nightly(make_job(*QUICK), Stages())
    add_rows(tmp_path, 1)
    nightly(make_job(*QUICK), Stages())
    new = str(tmp_path / "new")
    copied = manta("releases", "copy", str(tmp_path / "releases"), new, "--current")
    assert copied.code == 0
    assert "not copied, because no copied release needs them: " in copied.out
    assert manta("releases", "verify", new).code == 0
    listed = json.loads(manta("releases", "list", "--json", new).out)
    assert [each["pruned"] for each in listed["commits"]] == [True, False]
    add_rows(tmp_path, 2)
    outcome = nightly(make_job(*QUICK, f"release.root={new}"), Stages())
    assert (outcome.release, outcome.facts["counts"]["reused"]) == (3, 401)
    refused = manta("releases", "rollback", new, "1")
    assert refused.code == 3
