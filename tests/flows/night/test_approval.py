"""A candidate that passed its gates waits, is published once after its approval, and is not pruned before.

A later night takes its place, encodes nothing twice, and gives the vectors of a night from scratch.
"""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import CandidateRefused, ConfigError, DataError
from pipeline.flows.night.approval import promote
from pipeline.flows.night.nightly import nightly
from pipeline.flows.night.publish import NightOutcome
from pipeline.index.search.search import open_release
from pipeline.log import Stages
from pipeline.settings import Job
from pipeline.store.files.open_store import open_store
from pipeline.store.releases.manifest import ReleaseManifest
from pipeline.store.releases.prune import prune
from pipeline.store.releases.release import Releases
from pipeline.store.releases.verify import files_of
from pipeline.store.releases.waiting import WAITING, load_waiting
from pipeline.store.rows.schema import vector_matrix
from tests.conftest import CommandResult
from tests.flows.conftest import sentences

Make = Callable[..., Job]
PLAIN = ("whiten.mode=off", "gates.recall_at_10=")
APPROVAL = (*PLAIN, "release.publish=approval")

pytestmark = pytest.mark.usefixtures("cluster")


def night(job: Job) -> NightOutcome:
    return nightly(job, Stages())


def add_rows(folder: Path, name: str, count: int, seed: int) -> None:
    """Add a file of new rows to the corpus."""
    ids = [f"{name}-{row}" for row in range(count)]
    table = pa.table({"id": ids, "text": sentences(count, seed), "lang": ["en"] * count})
    pq.write_table(table, folder / "corpus" / f"{name}.parquet")


def waiting_name(job: Job) -> str:
    """Return the name of the candidate that waits."""
    record = load_waiting(open_store(job.release.root))
    assert record is not None
    return record.candidate


def waiting_manifest(job: Job) -> ReleaseManifest:
    """Return the manifest of the candidate that waits."""
    store = open_store(job.release.root)
    record = load_waiting(store)
    assert record is not None
    return record.load_manifest(store)


def vectors_of(job: Job, manifest: ReleaseManifest) -> dict[str, bytes]:
    """Return the bytes of each row's vector, by id."""
    tables = [pq.read_table(Path(job.release.root, unit.path)) for unit in manifest.units]
    rows = pa.concat_tables(tables)
    return dict(
        zip(rows["id"].to_pylist(), (row.tobytes() for row in vector_matrix(rows["vector"])), strict=True)
    )


def test_the_first_candidate_waits_and_is_published_with_its_approval(
    make_job: Make, manta: Callable[..., CommandResult], tmp_path: Path
):
    metrics = tmp_path / "manta.prom"
    job = make_job(*APPROVAL, f"release.metrics_file={metrics}")
    outcome = night(job)
    assert (outcome.status, outcome.release, outcome.facts["release"]) == ("waiting", 0, None)
    root, name = Path(job.release.root), waiting_name(job)
    assert Releases(open_store(root)).current() is None, "searchers see nothing of it"
    assert "waits for its approval" in (root / "index.html").read_text()
    listed = manta("releases", "list", str(root))
    assert f"manta releases promote {root} {name} --by NAME" in listed.out

    of_night = metrics.read_text()
    assert "ray_manta_release_number" not in of_night
    config = tmp_path / "night.yaml"
    config.write_text(f"release: {{root: {root}, metrics_file: {metrics}}}")
    approve = ("--by", "Ann", "--note", "looks right", "--json", "--config", str(config))
    done = manta("releases", "promote", str(root), name[:8], *approve)
    assert done.code == 0, done.err
    assert metrics.read_text().startswith(of_night), "what the night recorded stays"
    assert {"ray_manta_release_number 1.0", "ray_manta_release_rows 400.0"} <= {
        *metrics.read_text().splitlines()
    }
    commit = json.loads((root / "commits/00000001.json").read_text())
    approval = commit["approval"]
    assert (approval["candidate"], approval["by"], approval["note"]) == (name, "Ann", "looks right")
    assert approval["user"]
    assert approval["host"]
    release = open_release(str(root))
    assert release.manifest.release == 1
    text = sentences(400)[7]
    assert release.search(text, 1)["text"].to_pylist() == [text]
    page = (root / "releases/00000001/report.html").read_text()
    assert "Release 1" in page
    assert "--release 1" in page
    assert f"release-{name}" not in page
    summary = json.loads((root / "releases/00000001/summary.json").read_text())
    assert (summary["release"], summary["rows"]) == (1, 400)
    assert summary["p50_ms"] > 0
    facts = json.loads(manta("releases", "list", str(root), "--json").out)
    assert facts["waiting"] is None
    assert [each["status"] for each in facts["unpublished"]] == ["promoted"]
    assert "Ann: looks right" in manta("releases", "list", str(root)).out
    assert night(job).status == "unchanged"


def test_a_later_night_supersedes_the_candidate_and_encodes_nothing_twice(make_job: Make, tmp_path: Path):
    night(make_job(*PLAIN))
    job = make_job(*APPROVAL)
    add_rows(tmp_path, "first", 30, seed=1)
    assert night(job).status == "waiting"
    early, early_name = waiting_manifest(job), waiting_name(job)
    assert (early.counts["new"], early.counts["encoded"]) == (30, 30)
    add_rows(tmp_path, "second", 20, seed=2)
    assert night(job).status == "waiting"
    late = waiting_manifest(job)
    assert late.parent == 1
    assert (late.counts["new"], late.counts["encoded"]) == (50, 20), "compared with the published release"
    releases = Releases(open_store(job.release.root))
    with pytest.raises(CandidateRefused, match="the candidate that waits, found candidate"):
        promote(releases, early_name, "Ann")
    assert promote(releases, waiting_name(job), "Ann").commit.release == 2

    scratch = make_job(*PLAIN, f"release.root={tmp_path / 'scratch'}")
    night(scratch)
    fresh = Releases(open_store(scratch.release.root)).get(1)
    assert vectors_of(job, releases.get(2)) == vectors_of(scratch, fresh), "bit for bit"


def test_a_night_in_which_nothing_changed_keeps_the_candidate_and_one_that_went_back_withdraws_it(
    make_job: Make, tmp_path: Path
):
    night(make_job(*PLAIN))
    job = make_job(*APPROVAL)
    add_rows(tmp_path, "first", 30, seed=1)
    night(job)
    before = (Path(job.release.root) / WAITING).read_bytes()
    again = night(job)
    assert again.status == "waiting"
    assert "nothing changed" in again.facts["why"]
    assert (Path(job.release.root) / WAITING).read_bytes() == before
    (tmp_path / "corpus" / "first.parquet").unlink()
    assert night(job).status == "unchanged"
    assert load_waiting(open_store(job.release.root)) is None


def test_a_candidate_is_published_once_and_refused_after_another_release(make_job: Make, tmp_path: Path):
    night(make_job(*PLAIN))
    job, releases = make_job(*APPROVAL), Releases(open_store(tmp_path / "releases"))
    add_rows(tmp_path, "first", 30, seed=1)
    night(job)
    name = waiting_name(job)
    assert promote(releases, name, "Ann").is_new
    repeated = promote(releases, f"candidates/{name}", "Bob")
    assert (repeated.is_new, repeated.commit.approval and repeated.commit.approval.by) == (False, "Ann")
    releases.rollback(1)
    with pytest.raises(ConfigError, match=r"releases rollback .* 2"):
        promote(releases, name, "Ann")
    assert [commit.kind for commit in releases.history()] == ["publish", "publish", "rollback"]

    night(job)
    name = waiting_name(job)
    add_rows(tmp_path, "second", 20, seed=2)
    assert night(make_job(*PLAIN)).release == 4
    with pytest.raises(CandidateRefused, match=r"commit 4 \(publish of release 4\)"):
        promote(releases, name, "Ann")
    with pytest.raises(ConfigError, match="at least 6 digits"):
        promote(releases, "abc", "Ann")


def test_a_candidate_of_a_held_root_waits_and_is_published_after_the_hold(
    make_job: Make, tmp_path: Path, manta: Callable[..., CommandResult]
):
    job, root = make_job(*PLAIN), str(tmp_path / "releases")
    night(job)
    assert manta("releases", "hold", root, "--reason", "an audit").code == 0
    add_rows(tmp_path, "first", 30, seed=1)
    assert night(job).status == "held"
    assert night(job).facts["why"].startswith("nothing changed since candidate")
    arguments = ("releases", "promote", root, waiting_name(job), "--by", "Ann")
    assert manta(*arguments).code == 2
    assert manta("releases", "release", root).code == 0
    assert manta(*arguments).code == 0
    assert night(job).status == "unchanged"


def test_prune_keeps_the_candidate_that_waits_and_removes_the_superseded_one(make_job: Make, tmp_path: Path):
    night(make_job(*PLAIN))
    job, releases = make_job(*APPROVAL), Releases(open_store(tmp_path / "releases"))
    add_rows(tmp_path, "first", 30, seed=1)
    night(job)
    superseded = waiting_name(job)
    add_rows(tmp_path, "second", 20, seed=2)
    night(job)
    assert prune(releases, 1, grace_s=-60).files > 0
    left = {entry.path for entry in releases.store.list()}
    assert {file.path for file in files_of(releases.store, waiting_manifest(job))} <= left
    assert not [path for path in left if superseded in path]
    assert promote(releases, waiting_name(job), "Ann").is_new
    assert open_release(job.release.root).manifest.rows == 450


@pytest.mark.parametrize("folder", ["indexes", "units/vectors"])
def test_a_damaged_candidate_is_not_published(make_job: Make, tmp_path: Path, folder: str):
    night(make_job(*PLAIN))
    job, releases = make_job(*APPROVAL), Releases(open_store(tmp_path / "releases"))
    known = {file.path for file in files_of(releases.store, releases.get(1))}
    add_rows(tmp_path, "first", 30, seed=1)
    night(job)
    new = [file.path for file in files_of(releases.store, waiting_manifest(job)) if file.path not in known]
    file = Path(
        job.release.root, next(path for path in new if path.startswith(folder) and "json" not in path)
    )
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.chmod(0o644)
    file.write_bytes(content)
    with pytest.raises(DataError, match="sha256"):
        promote(releases, waiting_name(job), "Ann")
    assert np.array_equal(releases.numbers(), [1])
