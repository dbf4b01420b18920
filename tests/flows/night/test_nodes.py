"""A night over three Ray nodes with an object store between them.

If a node disappears, only its unfinished work is lost.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from pipeline.store.files.open_store import open_store
from tests.flows.conftest import ROOT, StartJob, finish_job, job_arguments, write_corpus

pytestmark = pytest.mark.slow
_PATIENCE_S = 240.0
_ROWS, _UNITS = 1_200, 48


@dataclass
class Nodes:
    """The process that runs the nodes."""

    process: subprocess.Popen[str]
    address: str
    raylets: list[int]

    def order(self, words: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(words, file=self.process.stdin, flush=True)
        assert self.process.stdout.readline().strip() == "done"

    def at_work(self) -> set[int]:
        """Return the raylets on which a pool's worker has an item."""
        return {
            raylet
            for raylet in self.raylets
            if any("MapWorker" in title and ".submit" in title for title in _titles(raylet))
        }


def _titles(raylet: int) -> list[str]:
    try:
        return [" ".join(child.cmdline()[:1]) for child in psutil.Process(raylet).children(recursive=True)]
    except psutil.Error:
        return []


@pytest.fixture
def environment(s3: str, tmp_path: Path) -> dict[str, str]:
    """Return the environment of nodes and drivers: the S3 server and a cache of their own."""
    own = {"MANTA_CACHE": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT), "MANTA_LOG": "json"}
    return {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"} | own


@pytest.fixture
def nodes(environment: dict[str, str]) -> Iterator[Nodes]:
    command = [sys.executable, "-m", "tests.flows.night.nodes"]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stdout is not None
    try:
        yield Nodes(process, **json.loads(process.stdout.readline()))
    finally:
        process.communicate("\n", timeout=_PATIENCE_S)


def written(root: str) -> dict[str, tuple[str, float]]:
    """Return etag and time of each file that a night wrote, by path.

    Files that contain the time (manifest, report, commit, marks of attempts) and working files are
    left out.
    """
    folders = ("units/", "moments/", "transforms/", "indexes/", "ids/", "encoders/")
    entries = (entry for entry in open_store(root).list() if entry.path.startswith(folders))
    return {
        entry.path: (entry.stamp, entry.modified)
        for entry in entries
        if not entry.path.startswith("indexes/work/") and ".attempts/" not in entry.path
    }


def finished(root: str) -> dict[str, tuple[str, float]]:
    """Return the records of encoded units, and their data files."""
    vectors = {path: facts for path, facts in written(root).items() if path.startswith("units/vectors/")}
    records = {path.rpartition(".")[0] for path in vectors if path.endswith(".json")}
    return {
        path: facts
        for path, facts in vectors.items()
        if path.rpartition(".")[0] in records or path.rpartition("-")[0] in records
    }


def wait_for_units(root: str, count: int, night: subprocess.Popen[str], nodes: Nodes) -> set[int]:
    """Wait until so many units have a record. Returns the raylets that were seen at work."""
    deadline, seen = time.monotonic() + _PATIENCE_S, set[int]()
    while (
        sum(path.endswith(".json") for path in finished(root)) < count
        and night.poll() is None
        and time.monotonic() < deadline
    ):
        seen |= nodes.at_work()
        time.sleep(0.1)
    return seen


def test_lost_nodes_lose_only_unfinished_units(
    start_job: StartJob, s3: str, nodes: Nodes, environment: dict[str, str], encoder: Path, tmp_path: Path
):
    write_corpus(tmp_path / "corpus", count=_ROWS)
    own = [
        "encode.unit_rows=25",
        "whiten.mode=off",
        "gates.recall_at_10=0.1",
        f"cluster.address={nodes.address}",
        "cluster.workers={min: 1, max: 3}",
    ]
    undisturbed, disturbed = f"{s3}/{tmp_path.name}/quiet", f"{s3}/{tmp_path.name}/disturbed"

    given = [*job_arguments(tmp_path, encoder), *own]
    night = start_job("nightly", [*given, f"release.root={undisturbed}"], environment)
    seen = wait_for_units(undisturbed, _UNITS, night, nodes)
    answer, _ = finish_job(night)
    assert (answer["status"], answer["rows"]) == ("published", _ROWS)
    assert len(seen) >= 2, "workers of at least two nodes encoded"

    night = start_job("nightly", [*given, f"release.root={disturbed}"], environment)
    wait_for_units(disturbed, 6, night, nodes)
    nodes.order("remove 0")
    before = finished(disturbed)
    wait_for_units(disturbed, 16, night, nodes)
    nodes.order("kill 1")
    before |= finished(disturbed)
    assert 12 <= len(before) < 2 * _UNITS, "both nodes were lost in the middle of encoding"
    answer, said = finish_job(night)
    assert (answer["status"], answer["rows"]) == ("published", _ROWS)
    after = written(disturbed)
    assert {path: after[path] for path in before} == before, "finished units were not encoded again"
    assert {path: stamp for path, (stamp, _) in after.items()} == {
        path: stamp for path, (stamp, _) in written(undisturbed).items()
    }, "the same bytes"
    assert said.count("is lost; its unfinished work is repeated") == 2
