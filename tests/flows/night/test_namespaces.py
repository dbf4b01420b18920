"""A night over three Ray nodes that share nothing but an S3 server: own addresses, /tmp/ray, shared memory
and disk each, as three machines would have.

The network is made of namespaces and a bridge, the disks of mounts that the others do not see. It needs root
and the command `ip`. By hand:
pytest -m slow tests/flows/night/test_namespaces.py
"""

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.flows.conftest import finish_job, job_arguments, write_corpus
from tests.flows.night.machines import HEAD, PORT, Listing, Machines, why_not

pytestmark = pytest.mark.alone

_ROWS, _UNITS = 1_200, 48


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
            [sys.executable, "-c", "import s3fs; s3fs.S3FileSystem().mkdir('corpus-vectors')"]
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
        "cluster.workers=3",
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
    listing = Listing(machines, "s3://corpus-vectors/undisturbed")
    night, seen = start(machines, machines.disk / "encoder", "s3://corpus-vectors/undisturbed"), set[int]()
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
    assert seen == {1, 2, 3}, "every node encoded"
    assert sum(path.endswith("model.safetensors") for path in files) == 1, (
        "one copy of the encoder, below the root"
    )


def test_a_killed_node_loses_only_unfinished_units(
    machines: Machines, undisturbed: tuple[dict[str, str], set[int]]
):
    listing = Listing(machines, "s3://corpus-vectors/disturbed")
    night = start(machines, machines.disk / "encoder", "s3://corpus-vectors/disturbed")
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
        f"node {machines.address(3)} is lost; its unfinished work is repeated on the 2 that are left" in said
    )
    listing.close()
