"""Every part of `python -m tests.gpu` passes: small on the CPU, and on a GPU if there is one."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import tests.gpu.__main__ as gpu
from tests.gpu.__main__ import LIMITS_S, part_of, run_all
from tests.gpu.scale import Scale

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.slow
@pytest.mark.parametrize("name", LIMITS_S)
def test_a_small_part_passes_on_the_cpu(name: str, tmp_path: Path):
    table = part_of(name)(Scale("cpu", True, tmp_path))
    assert table.rows
    assert all(len(row) == len(table.header) for row in table.rows)
    assert not table.problems


@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("name", LIMITS_S)
def test_a_part_passes_on_the_gpu(name: str, tmp_path: Path):
    assert not part_of(name)(Scale("cuda", False, tmp_path)).problems


def test_every_part_is_stopped_when_the_time_of_all_is_over(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(gpu, "ALL_LIMIT_S", 0)
    assert gpu.run_all(["parity", "speed"], "cpu", small=True) == 1
    assert "failed: parity, speed" in capfd.readouterr().out


@pytest.mark.slow
def test_a_part_is_stopped_at_its_limit(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    monkeypatch.setitem(LIMITS_S, "parity", 0)
    assert run_all(["parity", "memory"], "cpu", small=True) == 1
    printed = capfd.readouterr().out
    assert "parity was stopped after its limit of 0 s" in printed
    assert "1 of 2 parts passed\nfailed: parity" in printed


def test_an_unknown_part_is_refused():
    command = [sys.executable, "-m", "tests.gpu", "--device", "cpu", "speeds"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, "unknown part speeds; known: parity" in done.stderr) == (2, True)
