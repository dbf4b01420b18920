"""Closed and full standard streams: every command ends with a documented exit code."""

import subprocess
import sys

import pytest

from tests.flows.conftest import ROOT


@pytest.mark.parametrize(
    ("command", "streams", "code"),
    [
        ("completion bash", ">/dev/full", 75),
        ("completion bash", ">/dev/full 2>/dev/full", 75),
        ("completion bash", "<&- >&- 2>&-", 0),
        ("nightly --print-config", ">/dev/full", 75),
        ("nightly --print-config", ">&-", 0),
        ("--help", ">/dev/full", 75),
        ("nightly --unknown", "2>/dev/full", 2),
        ("nightly bogus=1", "2>/dev/full", 2),
        ("nightly bogus=1", "<&- >&- 2>&-", 2),
        ("nightly bogus=1 --json", ">/dev/full", 2),
    ],
)
def test_closed_and_full_streams_end_with_a_documented_code(command: str, streams: str, code: int):
    line = f"{sys.executable} -m jobs.cli {command} {streams}"
    done = subprocess.run(["bash", "-c", line], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    if code == 75 and "2>" not in streams:
        assert "error: standard output: expected a stream that takes the output" in done.stderr
