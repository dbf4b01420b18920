"""Processes are told apart by their start, and one that has ended does not run, even before it is reaped."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from pipeline.flows.workers.processes import WorkerProcess, children_of, kill_process


@pytest.fixture
def child() -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def _found(child: "subprocess.Popen[bytes]") -> WorkerProcess:
    (found,) = (each for each in children_of(os.getpid()) if each.pid == child.pid)
    return found


def test_a_child_is_found_until_it_has_ended(child: "subprocess.Popen[bytes]"):
    found = _found(child)
    assert found.runs()
    assert kill_process(found.pid, found.start_ticks)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it remains as a zombie
    assert not found.runs()
    child.wait()
    assert not found.runs()
    assert child.returncode == -signal.SIGKILL
    assert not kill_process(found.pid, found.start_ticks)


def test_a_process_with_another_start_is_left_alone(child: "subprocess.Popen[bytes]"):
    found = _found(child)
    earlier = WorkerProcess("", found.pid, found.start_ticks - 1)
    assert not earlier.runs()
    assert not kill_process(earlier.pid, earlier.start_ticks)
    assert found.runs()
