"""Trainings on the cluster: killed with -9 wherever, they end at the weights of one that nobody disturbed."""

import json
import subprocess
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.flows.conftest import StartJob, finish_job, kill_job
from tests.flows.train.training import training_arguments, weights, write_sentences, write_sts

pytestmark = pytest.mark.slow
_PATIENCE_S = 300.0
_STEPS = 240


def arguments(folder: Path, encoder: Path, *overrides: str) -> list[str]:
    """240 steps of two workers, with dropout, a checkpoint every 20 steps and a figure every 60."""
    own = [
        "train.workers=2",
        "cluster.cpus_per_worker=0.5",
        "train.epochs=20",
        "train.checkpoint={steps: 20, minutes: null}",
        "train.dropout=0.1",
    ]
    return [
        *training_arguments(folder, encoder),
        *own,
        f"train.dev={{uri: {folder / 'sts.parquet'}, steps: 60, keep: last}}",
        *overrides,
    ]


def last_step(run: Path) -> int:
    """Return the step of the last checkpoint."""
    return max((int(path.name.split("-")[1]) for path in run.glob("checkpoints/step-*.json")), default=0)


def wait_for(run: Path, step: int, training: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while last_step(run) < step and training.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)


def workers(process: int) -> list[psutil.Process]:
    """Workers of a training below that process."""
    children = psutil.Process(process).children(recursive=True)
    return [child for child in children if "RayTrainWorker" in " ".join(child.cmdline()[:1])]


def trajectory(run: Path) -> list[tuple[object, ...]]:
    """Loss, gradient, rate and figure of every step, and how close its vectors lay, to the last digit."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    told = ("step", "loss", "gradient_norm", "learning_rate", "alignment", "uniformity", "dev")
    return [tuple(line.get(name) for name in told) for line in lines]


def same_weights(one: Path, other: Path) -> bool:
    first, second = weights(one / "encoder"), weights(other / "encoder")
    return set(first) == set(second) and all(np.array_equal(first[name], second[name]) for name in first)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    write_sentences(folder / "sentences.parquet", 101)  # no multiple of the batch
    write_sts(folder / "sts.parquet")
    return folder


def test_a_training_with_killed_workers_and_driver_equals_an_undisturbed_one(
    start_job: StartJob, rows: Path, encoder: Path
):
    given = arguments(rows, encoder)
    answer, said = finish_job(start_job("train", given))
    assert (answer["status"], answer["steps"], answer["name"]) == ("trained", _STEPS, "run")
    assert f"training: starts, {_STEPS} steps" in said

    disturbed = rows / "trainings/disturbed"
    training = start_job("train", [*given, "train.name=disturbed"])
    wait_for(disturbed, 40, training)
    workers(training.pid)[1].kill()
    wait_for(disturbed, last_step(disturbed) + 60, training)
    assert last_step(disturbed) < _STEPS, "it was killed in its middle"
    assert "a training worker is lost" in kill_job(training)
    time.sleep(2)  # its workers die with it
    answer, said = finish_job(start_job("train", [*given, "train.name=disturbed"]))
    assert answer["status"] == "trained"
    assert "training disturbed continues after step" in said
    assert same_weights(rows / "trainings/run", disturbed)
    assert trajectory(rows / "trainings/run") == trajectory(disturbed)
    assert len(trajectory(disturbed)) == _STEPS + 1

    again, _ = finish_job(
        start_job("train", [*given, "cluster.address=127.0.0.1:1"])
    )  # no Ray is there: none is asked
    assert (again["status"], again["space_id"]) == ("unchanged", answer["space_id"])
    refused, _ = finish_job(start_job("train", [*given, "train.seed=1"]), 2)
    assert "train.seed is 1 and was 0" in refused["message"]
