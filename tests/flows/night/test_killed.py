"""A night killed with -9 and started again ends as an undisturbed one; of two at once one publishes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipeline import open_release
from pipeline.config import load_settings
from pipeline.flows.night.nightly import nightly
from pipeline.flows.workers.cluster import connect
from pipeline.flows.workers.local import LocalWorkers
from pipeline.log import Stages
from pipeline.settings import ClusterSettings, Job
from pipeline.store.release import Releases
from pipeline.store.store import open_store
from tests.flows.conftest import ON_RAY, ROOT, job_arguments, write_corpus

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


def start(folder: Path, encoder: Path, *overrides: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "jobs.nightly", "--json", *arguments(folder, encoder, *overrides)]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "MANTA_LOG": "json"},
    )


def finish(night: subprocess.Popen[str]) -> dict[str, Any]:
    out, errors = night.communicate(timeout=_PATIENCE_S)
    assert night.returncode == 0, errors[-3000:]
    answer: dict[str, Any] = json.loads(out)
    return answer


def records(root: Path) -> dict[str, int]:
    """List the records of finished embedding units, with their modification times."""
    return {path.name: path.stat().st_mtime_ns for path in root.glob("units/vectors/*/*.json")}


def unit_bytes(root: Path) -> dict[str, bytes]:
    """Read every file below units/ after prune has removed incomplete files, which no reader lists.

    Marks of attempts are left out: an attempt that was killed before its end leaves its mark to
    prune.
    """
    open_store(root).sweep(time.time() + 60)
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in (root / "units").rglob("*")
        if path.is_file() and not path.parent.name.endswith(".attempts")
    }


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
    while len(records(root)) < count and night.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)


@pytest.mark.parametrize("workers", [IN_ONE_PROCESS, pytest.param(ON_RAY, marks=pytest.mark.slow)])
def test_a_killed_night_goes_on_where_it_was_and_ends_the_same(
    folder: Path, encoder: Path, undisturbed: Path, child: LocalWorkers, workers: str
):
    root = folder / "releases"
    night = start(folder, encoder, workers)
    wait_for_units(root, 3, night)
    night.send_signal(signal.SIGKILL)
    night.communicate()
    before = records(root)
    assert 3 <= len(before) < _UNITS, "it was killed in the middle of encoding"
    if workers == ON_RAY:
        assert finish(start(folder, encoder, workers))["status"] == "published"
    else:
        with connect(ClusterSettings(), Stages(), local=child):
            assert (
                nightly(load_settings(Job, None, tuple(arguments(folder, encoder))), Stages()).status
                == "published"
            )
    after = records(root)
    assert len(after) == _UNITS
    assert {name: after[name] for name in before} == before, "what was finished was not encoded again"
    assert unit_bytes(root) == unit_bytes(undisturbed)
    queries = ["a man reads", "the lazy dog sleeps near the river"]
    assert open_release(str(root)).search(queries, 10) == open_release(str(undisturbed)).search(queries, 10)


@pytest.mark.slow
def test_killed_workers_are_replaced_and_the_night_ends_the_same(
    folder: Path, encoder: Path, undisturbed: Path
):
    root = folder / "releases"
    night = start(folder, encoder, ON_RAY)
    killed = 0
    for done in (2, 10):
        wait_for_units(root, done, night)
        workers = [
            child
            for child in psutil.Process(night.pid).children(recursive=True)
            if "MapWorker" in " ".join(child.cmdline()[:1])
        ]
        workers[0].kill()
        killed += 1
    assert finish(night)["status"] == "published"
    assert killed == 2
    assert unit_bytes(root) == unit_bytes(undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["raylet/raylet", "gcs/gcs_server"])
def test_a_night_whose_ray_is_killed_says_so_at_once_and_goes_on_where_it_was(
    folder: Path, encoder: Path, undisturbed: Path, part: str
):
    night = start(folder, encoder, ON_RAY)
    wait_for_units(folder / "releases", 3, night)
    (server,) = [child for child in psutil.Process(night.pid).children() if child.cmdline()[0].endswith(part)]
    server.kill()
    out, errors = night.communicate(timeout=_PATIENCE_S)
    assert night.returncode == 75, errors[-3000:]
    assert "local Ray: expected its processes to run" in json.loads(out)["message"]
    assert finish(start(folder, encoder))["status"] == "published"
    assert unit_bytes(folder / "releases") == unit_bytes(undisturbed)


@pytest.mark.usefixtures("cluster")
def test_a_truncated_unit_is_made_again_to_the_same_bytes(folder: Path, encoder: Path, undisturbed: Path):
    root = folder / "releases"
    shutil.copytree(undisturbed, root)
    damaged = sorted(root.glob("units/vectors/*/*.parquet"))[5]
    damaged.write_bytes(damaged.read_bytes()[:1000])
    for name in ("commits", "releases", "indexes"):
        shutil.rmtree(root / name)  # as if the night had stopped before the index
    nightly(load_settings(Job, None, tuple(arguments(folder, encoder))), Stages())
    assert unit_bytes(root) == unit_bytes(undisturbed)


@pytest.mark.slow
def test_of_two_nights_at_once_one_publishes_and_the_other_says_so(folder: Path, encoder: Path):
    nights = [start(folder, encoder), start(folder, encoder)]
    answers = [finish(night) for night in nights]
    assert sorted(answer["status"] for answer in answers) in (
        ["overtaken", "published"],
        ["published", "unchanged"],
    )
    assert {answer["release"] for answer in answers} == {1}
    releases = Releases(open_store(folder / "releases"))
    assert [commit.kind for commit in releases.history()] == ["publish"]
    assert open_release(str(folder / "releases")).manifest.rows == _ROWS
