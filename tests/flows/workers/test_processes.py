"""Processes are told apart by their start, and one that has ended does not run, even before it is reaped."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

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


def test_a_name_that_is_no_utf8_is_read(tmp_path: Path):
    # the kernel cuts names after 15 bytes, here in the middle of a character
    script = tmp_path / "fourteen-bytesé"
    script.write_text("#!/bin/sh\necho begun\nread line\n")
    script.chmod(0o755)
    with subprocess.Popen([script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        name = Path(f"/proc/{process.pid}/comm").read_bytes()
        assert name == "fourteen-bytesé".encode()[:15] + b"\n"
        assert process.pid in [child.pid for child in children_of(os.getpid())]
