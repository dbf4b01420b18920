"""Trainings on the cluster end with the same weights although their workers and their driver are killed."""

import json
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.flows.conftest import StartJob, finish_job, kill_job
from tests.flows.train.training import assert_equal_weights, training_arguments, write_sentences, write_sts

pytestmark = pytest.mark.slow
_PATIENCE_S = 300.0
_STEPS = 240


def arguments(folder: Path, encoder: Path, *overrides: str) -> list[str]:
    """Return the overrides of 240 steps of two workers, with checkpoints, dropout and scores on dev."""
    return [
        *training_arguments(folder, encoder),
        "train.workers=2",
        "cluster.cpus_per_worker=0.5",
        "train.epochs=20",
        "train.checkpoint={steps: 20, minutes: null}",
        "train.dropout=0.1",
        f"train.dev={{uri: {folder / 'sts.parquet'}, steps: 60, keep: last}}",
        *overrides,
    ]


def last_step(run: Path) -> int:
    """Return the step of the last checkpoint."""
    return max((int(path.name.split("-")[1]) for path in run.glob("checkpoints/step-*.json")), default=0)


def wait_for(run: Path, step: int, training: subprocess.Popen[str]) -> None:
    """Wait for a checkpoint of that step or a later one, or for the end of the process."""
    deadline = time.monotonic() + _PATIENCE_S
    while last_step(run) < step and training.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)


def workers(process: int) -> list[psutil.Process]:
    """Return the processes of training workers that descend from that process."""
    children = psutil.Process(process).children(recursive=True)
    return [child for child in children if "RayTrainWorker" in " ".join(child.cmdline()[:1])]


def metrics_of_steps(run: Path) -> list[tuple[object, ...]]:
    """Return the metrics of every step, without times."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    names = ("step", "loss", "gradient_norm", "learning_rate", "alignment", "uniformity", "dev")
    return [tuple(line.get(name) for name in names) for line in lines]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write sentences to train on and pairs with scores; return their folder."""
    folder = tmp_path_factory.mktemp("rows")
    write_sentences(folder / "sentences.parquet", 101)  # not a multiple of the batch
    write_sts(folder / "sts.parquet")
    return folder


def test_a_training_with_killed_workers_and_driver_equals_an_uninterrupted_one(
    start_job: StartJob, rows: Path, encoder: Path
):
    given = arguments(rows, encoder)
    result, log = finish_job(start_job("train", given))
    assert (result["status"], result["steps"], result["name"]) == ("trained", _STEPS, "run")
    assert f"training: starts, {_STEPS} steps" in log

    whole, killed = rows / "trainings/run", rows / "trainings/killed"
    training = start_job("train", [*given, "train.name=killed"])
    wait_for(killed, 40, training)
    workers(training.pid)[1].kill()
    wait_for(killed, last_step(killed) + 60, training)
    assert last_step(killed) < _STEPS
    assert "a training worker is lost" in kill_job(training)
    time.sleep(2)  # until its workers have ended, too
    result, log = finish_job(start_job("train", [*given, "train.name=killed"]))
    assert result["status"] == "trained"
    assert "training killed continues after step" in log
    assert_equal_weights(killed / "encoder", whole / "encoder")
    assert metrics_of_steps(killed) == metrics_of_steps(whole)
    assert len(metrics_of_steps(killed)) == _STEPS + 1

    no_ray = "cluster.address=127.0.0.1:1"  # a finished training does not connect to Ray
    again, _ = finish_job(start_job("train", [*given, no_ray]))
    assert (again["status"], again["space_id"]) == ("unchanged", result["space_id"])
    refused, _ = finish_job(start_job("train", [*given, "train.seed=1"]), 2)
    assert "train.seed is 1 and was 0" in refused["message"]
