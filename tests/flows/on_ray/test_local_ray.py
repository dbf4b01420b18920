"""When a local Ray is shut down, its workers end, even one that does not exit by itself."""

import os
import subprocess
import sys

import psutil
import pytest

from tests.flows.conftest import ROOT

_LEAVE_WORKERS = """
from pipeline.flows.workers.cluster import connect
from pipeline.flows.workers.tasks import Pool
from pipeline.log import Stages
from pipeline.settings import ClusterSettings
from tests.flows.tasks import NeverExit

with connect(ClusterSettings(), Stages()) as workers:
    pids = set(dict(workers.map_units(NeverExit(), [0, 1], Pool(2, cpus=0.5))).values())
    pids.add(workers.run(NeverExit(), 0, Pool(1)))
print(*pids)
"""


@pytest.mark.slow
def test_workers_that_do_not_exit_are_killed():
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    done = subprocess.run(
        [sys.executable, "-c", _LEAVE_WORKERS],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    left = [pid for pid in map(int, done.stdout.split()) if _runs(pid)]
    assert not left


def _runs(pid: int) -> bool:
    """Return whether the process runs or is stopped; if so, kill it."""
    try:
        process = psutil.Process(pid)
        runs = process.status() != psutil.STATUS_ZOMBIE
        process.kill()
    except psutil.NoSuchProcess:
        return False
    return runs
