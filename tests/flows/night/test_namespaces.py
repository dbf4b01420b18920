"""A night over Ray nodes that share nothing but an S3 server and a token: own addresses, /tmp/ray, memory
and disk each, as machines would have.

The network is made of namespaces and a bridge, the disks of mounts that the others do not see. It needs root
and the command `ip`. By hand:
python -m tests.alone tests/flows/night/test_namespaces.py
"""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.flows.conftest import finish_job, job_arguments, write_corpus
from tests.flows.night.machines import HEAD, PORT, WORKING, Listing, Machines, why_not

pytestmark = pytest.mark.alone

_ROWS, _UNITS = 1_200, 48
_STAGES = ("ingest", "encode", "whiten", "train", "index", "merge", "gates")
_LOOKED_FOR_S = 1.0
_CORPUS = "s3://manta/corpus"
# A night whose corpus, small as it is, is read on the workers, which also try the candidate.
_NIGHT = """
import runpy
from pipeline.flows.night import ingest_workers
from pipeline.flows.night.gates import as_searcher
ingest_workers.SMALL_INPUT = as_searcher._SMALL_BYTES = 0
runpy.run_module("jobs.nightly", run_name="__main__", alter_sys=True)
"""


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory, encoder: Path) -> Iterator[Machines]:
    if reason := why_not():
        pytest.skip(reason)
    disk = tmp_path_factory.mktemp("disk")
    write_corpus(disk / "corpus", count=_ROWS)
    shutil.copytree(encoder, disk / "encoder")
    built = Machines(disk, tmp_path_factory.mktemp("scratch"), tmp_path_factory.mktemp("logs"))
    try:
        built.build()
        bucket = built.inside(
            [
                sys.executable,
                "-c",
                "import s3fs; store = s3fs.S3FileSystem(); "
                f"store.put({str(disk / 'corpus')!r}, {_CORPUS!r}, recursive=True)",
            ]
        )
        assert bucket.wait() == 0, bucket.communicate()[1]
        yield built
    finally:
        built.tear_down()


def start(machines: Machines, encoder: Path, root: str) -> subprocess.Popen[str]:
    own = [
        "encode.unit_rows=25",
        "whiten.mode=off",
        "gates.recall_at_10=0.1",
        f"cluster.address={HEAD}:{PORT}",
        f"cluster.workers={len(WORKING)}",
        f"release.root={root}",
    ]
    return machines.inside(
        [sys.executable, "-m", "jobs.nightly", "--json", *job_arguments(machines.disk, encoder), *own]
    )


@pytest.fixture(scope="module")
def undisturbed(machines: Machines) -> tuple[dict[str, str], set[int]]:
    """Run an undisturbed night with encoder and corpus on the first node's disk.

    Returns its files, and the nodes that were seen at work.
    """
    listing = Listing(machines, "s3://manta/undisturbed")
    night, seen = start(machines, machines.disk / "encoder", "s3://manta/undisturbed"), set[int]()
    while night.poll() is None and len(listing.records()) < _UNITS:
        seen |= machines.at_work()
        time.sleep(0.1)
    answer, _ = finish_job(night)
    assert (answer["status"], answer["rows"]) == ("published", _ROWS)
    try:
        return listing.written(), seen
    finally:
        listing.close()


def test_other_nodes_need_no_file_of_the_drivers_disk(
    undisturbed: tuple[dict[str, str], set[int]],
):
    files, seen = undisturbed
    assert seen == set(WORKING), "every node encoded"
    assert sum(path.endswith("model.safetensors") for path in files) == 1, (
        "one copy of the encoder, below the root"
    )


def test_a_killed_node_loses_only_unfinished_units(
    machines: Machines, undisturbed: tuple[dict[str, str], set[int]]
):
    listing = Listing(machines, "s3://manta/disturbed")
    night = start(machines, machines.disk / "encoder", "s3://manta/disturbed")
    while night.poll() is None and len(listing.records()) < 8:
        time.sleep(0.1)
    machines.kill(3)
    before = listing.records()
    assert 8 <= len(before) < _UNITS, "it was killed in the middle of encoding"
    answer, said = finish_job(night)
    assert (answer["status"], answer["rows"]) == ("published", _ROWS)
    after = listing.records()
    assert {path: after[path] for path in before} == before, "finished units were not encoded again"
    assert listing.written() == undisturbed[0], "the same bytes"
    assert (
        f"node {machines.address(3)} is lost; its unfinished work is repeated on the 1 that is left" in said
    )
    listing.close()


@dataclass
class NightOfAllStages:
    """A night that reads, encodes, whitens, trains, fills, merges and checks on the workers of all nodes."""

    machines: Machines
    root: str

    def start(self) -> subprocess.Popen[str]:
        own = [
            f"corpus.uri={_CORPUS}",
            "encode.unit_rows=25",
            "index.kind=ivf_flat",
            "gates.recall_at_10=0.1",
            f"cluster.address={HEAD}:{PORT}",
            "cluster.workers={min: 1, max: 2}",
            f"release.root={self.root}",
        ]
        given = job_arguments(self.machines.disk, self.machines.disk / "encoder")
        return self.machines.inside([sys.executable, "-c", _NIGHT, "--json", *given, *own])

    def files(self) -> dict[str, str]:
        listing = Listing(self.machines, self.root)
        try:
            return listing.written()
        finally:
            listing.close()


def wait_for_stage(night: subprocess.Popen[str], stage: str) -> None:
    """Read what the night says until the stage starts."""
    assert night.stderr is not None
    for line in night.stderr:
        if line.startswith("{") and json.loads(line)["event"].startswith(f"{stage}: starts"):
            return
    pytest.fail(f"the night ended before {stage}")


def node_to_kill(machines: Machines) -> int:
    """Return a node that has an item; the last node if none is seen with one.

    Items of some stages are done between two looks. Then the node loses idle workers only.
    """
    deadline = time.monotonic() + _LOOKED_FOR_S
    while time.monotonic() < deadline:
        if working := machines.at_work():
            return min(working)
        time.sleep(0.02)
    return WORKING[-1]


@pytest.fixture(scope="module")
def all_stages(machines: Machines) -> dict[str, str]:
    """Run the night undisturbed. Returns its files."""
    quiet = NightOfAllStages(machines, "s3://manta/quiet")
    answer, _ = finish_job(quiet.start())
    assert (answer["status"], answer["rows"]) == ("published", _ROWS)
    return quiet.files()


@pytest.mark.parametrize("stage", _STAGES)
def test_a_node_killed_in_any_stage_changes_no_byte(
    machines: Machines, all_stages: dict[str, str], stage: str
):
    disturbed = NightOfAllStages(machines, f"s3://manta/{stage}")
    night = disturbed.start()
    wait_for_stage(night, stage)
    killed = node_to_kill(machines)
    assert night.poll() is None, "the night still runs"
    machines.kill(killed)
    answer, _ = finish_job(night)
    machines.join(killed)
    assert (answer["status"], answer["rows"]) == ("published", _ROWS)
    assert disturbed.files() == all_stages
