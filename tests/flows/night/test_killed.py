"""A night that is killed and started again writes the bytes of an undisturbed one; of two, one publishes."""

import json
import shutil
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from pipeline.config import load_settings
from pipeline.flows.night.nightly import nightly
from pipeline.flows.workers.cluster import connect
from pipeline.flows.workers.local import LocalWorkers
from pipeline.index.search.search import open_release
from pipeline.log import Stages
from pipeline.settings import ClusterSettings, Job
from pipeline.store.files.open_store import open_store
from pipeline.store.releases.release import Releases
from tests.flows.conftest import (
    ON_RAY,
    StartJob,
    encoded_units,
    finish_job,
    job_arguments,
    kill_job,
    unit_hashes,
    write_corpus,
)

_PATIENCE_S = 180.0
_ROWS, _UNITS = 600, 24
IN_ONE_PROCESS = "cluster.small_rows=5000"


def arguments(folder: Path, encoder: Path, *overrides: str) -> list[str]:
    return [
        *job_arguments(folder, encoder),
        "gates.recall_at_10=0.1",
        "whiten.mode=off",
        "encode.unit_rows=25",
        *overrides,
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_corpus(tmp_path / "corpus", count=_ROWS)
    return tmp_path


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, child: LocalWorkers, encoder: Path) -> Path:
    """Return the root of an undisturbed night."""
    folder = tmp_path_factory.mktemp("undisturbed")
    write_corpus(folder / "corpus", count=_ROWS)
    with connect(ClusterSettings(), Stages(), local=child):
        outcome = nightly(load_settings(Job, None, tuple(arguments(folder, encoder))), Stages())
    assert (outcome.status, outcome.release, outcome.rows) == ("published", 1, _ROWS)
    return folder / "releases"


def wait_for_units(root: Path, count: int, night: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while len(encoded_units(root)) < count and night.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)


@pytest.mark.parametrize("workers", [IN_ONE_PROCESS, pytest.param(ON_RAY, marks=pytest.mark.slow)])
def test_a_killed_night_resumes_to_the_same_bytes(
    start_job: StartJob, folder: Path, encoder: Path, undisturbed: Path, child: LocalWorkers, workers: str
):
    root = folder / "releases"
    night = start_job("nightly", arguments(folder, encoder, workers))
    wait_for_units(root, 3, night)
    kill_job(night)
    before = encoded_units(root)
    assert 3 <= len(before) < _UNITS, "it was killed in the middle of encoding"
    if workers == ON_RAY:
        answer, _ = finish_job(start_job("nightly", arguments(folder, encoder, workers)))
        assert answer["status"] == "published"
    else:
        with connect(ClusterSettings(), Stages(), local=child):
            assert (
                nightly(load_settings(Job, None, tuple(arguments(folder, encoder))), Stages()).status
                == "published"
            )
    after = encoded_units(root)
    assert len(after) == _UNITS
    assert {name: after[name] for name in before} == before, "finished units were not encoded again"
    assert unit_hashes(root, after_a_kill=True) == unit_hashes(undisturbed)
    queries = ["a man reads", "the lazy dog sleeps near the river"]
    assert open_release(str(root)).search(queries, 10) == open_release(str(undisturbed)).search(queries, 10)


@pytest.mark.slow
def test_killed_workers_are_replaced_without_changing_a_byte(
    start_job: StartJob, folder: Path, encoder: Path, undisturbed: Path
):
    root = folder / "releases"
    night = start_job("nightly", arguments(folder, encoder, ON_RAY))
    killed: set[int] = set()
    for count in (2, 10):
        wait_for_units(root, count, night)
        workers = [
            child
            for child in psutil.Process(night.pid).children(recursive=True)
            if "MapWorker" in " ".join(child.cmdline()[:1])
        ]
        workers[0].kill()
        killed.add(workers[0].pid)
    answer, _ = finish_job(night)
    assert answer["status"] == "published"
    assert len(killed) == 2, "two different workers"
    assert unit_hashes(root, after_a_kill=True) == unit_hashes(undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["raylet/raylet", "gcs/gcs_server"])
def test_a_night_whose_ray_is_killed_ends_at_once_and_resumes(
    start_job: StartJob, folder: Path, encoder: Path, undisturbed: Path, part: str
):
    night = start_job("nightly", arguments(folder, encoder, ON_RAY))
    wait_for_units(folder / "releases", 3, night)
    (server,) = [child for child in psutil.Process(night.pid).children() if child.cmdline()[0].endswith(part)]
    server.kill()
    out, errors = night.communicate(timeout=_PATIENCE_S)
    assert night.returncode == 75, errors[-3000:]
    assert "local Ray: expected its processes to run" in json.loads(out)["message"]
    answer, _ = finish_job(start_job("nightly", arguments(folder, encoder)))
    assert answer["status"] == "published"
    assert unit_hashes(folder / "releases", after_a_kill=True) == unit_hashes(undisturbed)


@pytest.mark.usefixtures("cluster")
def test_a_truncated_unit_is_written_again_with_the_same_bytes(
    folder: Path, encoder: Path, undisturbed: Path
):
    root = folder / "releases"
    shutil.copytree(undisturbed, root)
    damaged = sorted(root.glob("units/vectors/*/*.parquet"))[5]
    damaged.write_bytes(damaged.read_bytes()[:1000])
    for name in ("commits", "releases", "indexes"):
        shutil.rmtree(root / name)  # as if the night had stopped before the index
    nightly(load_settings(Job, None, tuple(arguments(folder, encoder))), Stages())
    assert unit_hashes(root, after_a_kill=True) == unit_hashes(undisturbed)


@pytest.mark.slow
def test_of_two_concurrent_nights_one_publishes_and_the_other_reports_it(
    start_job: StartJob, folder: Path, encoder: Path
):
    nights = [start_job("nightly", arguments(folder, encoder)) for _ in range(2)]
    answers = [finish_job(night)[0] for night in nights]
    assert sorted(answer["status"] for answer in answers) in (
        ["overtaken", "published"],
        ["published", "unchanged"],
    )
    assert {answer["release"] for answer in answers} == {1}
    releases = Releases(open_store(folder / "releases"))
    assert [commit.kind for commit in releases.history()] == ["publish"]
    assert open_release(str(folder / "releases")).manifest.rows == _ROWS
