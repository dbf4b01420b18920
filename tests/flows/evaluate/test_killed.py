"""A killed evaluation continues from its stored vectors, with the same scores."""

import time
from pathlib import Path

import numpy as np
import pytest

from pipeline.flows.evaluate.evaluate import evaluate
from pipeline.log import Stages
from pipeline.settings import EncoderSettings
from tests.flows.conftest import StartJob, encoded_units, kill_job
from tests.flows.evaluate.evaluating import arguments, distinct, job, oracle, vector_rows, write_pairs

pytestmark = pytest.mark.usefixtures("cluster")
SMALL_UNITS = "encode.unit_rows=20"


def test_a_killed_evaluation_resumes_with_the_same_scores(start_job: StartJob, tmp_path: Path, encoder: Path):
    write_pairs(tmp_path / "tasks/sts/STS12.parquet", 300, 5)
    run = start_job("evaluate", [*arguments(tmp_path, encoder), SMALL_UNITS])
    evaluations = tmp_path / "root/evaluations"
    deadline = time.monotonic() + 120
    while len(encoded_units(evaluations)) < 3 and run.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    kill_job(run)
    before = encoded_units(evaluations)
    assert len(before) >= 3
    assert not list(tmp_path.glob("root/evaluations/results/*/*")), "it was killed while encoding"
    resumed = evaluate(job(tmp_path, encoder, SMALL_UNITS), Stages())
    file = tmp_path / "tasks/sts/STS12.parquet"
    assert 0 < resumed.encoded < distinct(file)
    assert {name: encoded_units(evaluations)[name] for name in before} == before
    assert vector_rows(tmp_path, resumed.candidates[0].space_id) == distinct(file)
    np.testing.assert_allclose(
        resumed.measured[0].results[0].result.value,
        oracle(file, EncoderSettings(path=str(encoder))),
        atol=1e-3,
    )
