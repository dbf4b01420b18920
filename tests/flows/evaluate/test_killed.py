"""A killed evaluation continues from its stored vectors, with the same scores."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from pipeline.flows.evaluate.evaluate import evaluate
from pipeline.log import Stages
from pipeline.settings import EncoderSettings
from tests.flows.conftest import ROOT
from tests.flows.evaluate.evaluating import arguments, distinct, job, oracle, vector_rows, write_pairs

pytestmark = pytest.mark.usefixtures("cluster")
SMALL_UNITS = "encode.unit_rows=20"


def start(folder: Path, encoder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "jobs.evaluate", "--json", *arguments(folder, encoder), SMALL_UNITS]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "MANTA_LOG": "json"},
    )


def records(folder: Path) -> dict[str, int]:
    return {
        path.name: path.stat().st_mtime_ns for path in folder.glob("root/evaluations/units/vectors/*/*.json")
    }


def test_a_killed_evaluation_goes_on_where_it_was_and_finds_the_same(tmp_path: Path, encoder: Path):
    write_pairs(tmp_path / "tasks/sts/STS12.parquet", 300, 5)
    run = start(tmp_path, encoder)
    deadline = time.monotonic() + 120
    while len(records(tmp_path)) < 3 and run.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    for process in [*psutil.Process(run.pid).children(recursive=True), psutil.Process(run.pid)]:
        process.send_signal(signal.SIGKILL)
    run.communicate()
    before = records(tmp_path)
    assert len(before) >= 3
    assert not list(tmp_path.glob("root/evaluations/results/*/*")), "it was killed while encoding"
    again = evaluate(job(tmp_path, encoder, SMALL_UNITS), Stages())
    file = tmp_path / "tasks/sts/STS12.parquet"
    assert 0 < again.encoded < distinct(file)
    assert {name: records(tmp_path)[name] for name in before} == before
    assert vector_rows(tmp_path, again.candidates[0].space_id) == distinct(file)
    np.testing.assert_allclose(
        again.measured[0].scored[0].result.value, oracle(file, EncoderSettings(path=str(encoder))), atol=1e-3
    )
