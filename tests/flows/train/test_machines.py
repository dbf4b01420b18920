"""Trainings over machines that share no disk, made of namespaces as in tests/flows/night."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.flows.conftest import finish_job
from tests.flows.night.machines import HEAD, PORT, WORKING, Machines, why_not
from tests.flows.train.test_train import arguments
from tests.flows.train.training import write_sentences, write_sts

pytestmark = pytest.mark.alone


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory, encoder: Path) -> Iterator[Machines]:
    if reason := why_not():
        pytest.skip(reason)
    disk = tmp_path_factory.mktemp("disk")
    built = Machines(disk, tmp_path_factory.mktemp("scratch"), tmp_path_factory.mktemp("logs"))
    try:
        built.build()
        yield built
    finally:
        built.tear_down()


def test_a_root_on_one_machines_disk_is_refused_before_the_first_step(
    machines: Machines, encoder: Path, tmp_path: Path
):
    write_sentences(tmp_path / "sentences.parquet", 101)
    write_sts(tmp_path / "sts.parquet")
    own = [f"train.root={machines.disk}/trainings", f"cluster.address={HEAD}:{PORT}"]
    command = [sys.executable, "-m", "jobs.train", "--json", *arguments(tmp_path, encoder, *own)]
    _, log = finish_job(machines.inside(command), code=2)
    assert "train.root: expected a store that every node can read and write" in log
    assert all(
        f"node {machines.address(node)}: a file that this command wrote is not there" in log
        for node in WORKING
    )
    assert "step 1" not in log
    assert not list(machines.disk.glob("trainings/run/checkpoints/*"))
