"""Each training step is counted in exactly one line of metrics, in the file and in every tracker, also if the
training was interrupted and resumed.
"""

import importlib.util
import json
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.errors import ConfigError, DataError
from pipeline.flows.train.train import train
from pipeline.log import Stages
from pipeline.objectives import Loss
from pipeline.settings import Job
from pipeline.settings.training import TrainSettings, WatchSettings
from pipeline.store.files.base import Store
from pipeline.store.files.open_store import open_store
from pipeline.store.records.units import sum_counts
from pipeline.train.dev import DevMetrics
from pipeline.train.loop import Step
from pipeline.train.metrics import METRICS, MetricsFile, TrainingLog, read_metrics
from pipeline.train.metrics_line import MetricsLine
from pipeline.train.trackers import (
    FOLDER,
    TensorBoard,
    TrackedRun,
    flat_metrics,
    open_trackers,
    tracker_names,
)
from pipeline.train.vector_metrics import vector_metrics
from tests.objectives.tiny import batch_of

EVERY, PER_EPOCH = 4, 8


def step(number: int, **changes: Any) -> Step:
    """Return a step whose metrics follow from its number."""
    vectors = torch.randn(6, 5, generator=torch.Generator().manual_seed(int(number)))
    loss = Loss.of(near=torch.tensor(1.0 / number), far=torch.tensor(0.25 * number))
    values: dict[str, Any] = {
        "number": number,
        "loss": loss,
        "gradient_norm": 2.0 * number,
        "learning_rate": 1e-3 * number,
        "rows": 64,
        "tokens": 640,
        "seconds": 0.5 + 0.1 * number,
        "waited_s": 0.1 * number,
        "counts": {"repeated": number, "blank": 0},
        "reps": (vectors, vectors + 0.1),
        "batch": batch_of({"text": ["a"] * 6}),
    }
    return Step(**values | changes)


@pytest.fixture(params=["folder", "bucket"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return open_store(
        tmp_path if request.param == "folder" else f"{request.getfixturevalue('s3')}/{uuid.uuid4().hex}"
    )


def log_of(store: Store, done: int = 0) -> TrainingLog:
    """Open the log of a training that continues after step `done`."""
    return TrainingLog(MetricsFile(store, step=done), every=EVERY, steps_per_epoch=PER_EPOCH, positives=True)


def lines_in_file(store: Store) -> list[dict[str, Any]]:
    return [json.loads(line) for line in store.read(METRICS).splitlines()]


def test_a_line_has_the_means_of_its_steps(store: Store):
    with log_of(store) as log:
        for number in range(1, 2 * EVERY + 1):
            log.add(step(number))
    lines = read_metrics(store)
    assert [line.step for line in lines] == [4, 8]
    numbers = np.arange(5, 9)
    second = lines[1]
    assert second.epoch == 1.0
    assert second.parts == pytest.approx(
        {"near": (1 / numbers).mean(), "far": (numbers / 4).mean()}, rel=1e-6
    )
    assert second.loss == pytest.approx((1 / numbers + numbers / 4).mean(), rel=1e-6)
    assert (second.gradient_norm, second.learning_rate) == (pytest.approx(13.0), 8e-3)
    seconds = 4 * 0.5 + 0.1 * numbers.sum()
    assert (second.tokens_per_s, second.rows_per_s, second.waiting) == pytest.approx(
        (4 * 640 / seconds, 4 * 64 / seconds, 0.1 * numbers.sum() / seconds)
    )
    assert second.counts == {"repeated": 26}  # counts of zero are omitted
    assert sum_counts(line.counts for line in lines) == {"repeated": 36}
    assert (second.rows, second.seconds) == (256, pytest.approx(seconds))
    found = [vector_metrics(step(number).reps, positives=True) for number in numbers]
    for name in ("alignment", "uniformity", "positive_cosine", "negative_cosine"):
        assert getattr(second, name) == pytest.approx(np.mean([each[name] for each in found]))
    assert "dev" not in lines_in_file(store)[1]  # metrics that were not measured are omitted
    assert "memory_bytes" not in lines_in_file(store)[1]


def test_a_score_on_dev_ends_a_line(store: Store):
    with log_of(store) as log:
        log.begin(DevMetrics(50.5))
        for number in range(1, 8):
            log.add(step(number), dev=DevMetrics(61.25) if number == 6 else None)
    assert [(line.step, line.dev, line.rows) for line in read_metrics(store)] == [
        (0, 50.5, 0),
        (4, None, 256),
        (6, 61.25, 128),
        (7, None, 64),
    ]
    assert lines_in_file(store)[0] == {"step": 0, "epoch": 0.0, "dev": 50.5}


def test_the_geometry_on_dev_is_in_the_line_of_its_score(store: Store):
    geometry = [{"alignment": 0.3 - number / 10, "uniformity": -2.0 - number} for number in range(2)]
    with log_of(store) as log:
        log.begin(DevMetrics(50.5, geometry[0]))
        log.add(step(1), DevMetrics(61.25, geometry[1]))
        log.add(step(2))
    assert [line.dev_geometry for line in read_metrics(store)] == [*geometry, {}]
    assert [line["dev_geometry"] for line in lines_in_file(store)[:2]] == geometry
    assert flat_metrics(read_metrics(store)[1])["dev_geometry/uniformity"] == -3


@pytest.mark.parametrize("stopped", [7, 8, 9])
def test_a_resumed_training_writes_each_step_once_and_ends_a_line_at_the_checkpoint(
    store: Store, stopped: int
):
    log = log_of(store)
    log.begin(DevMetrics(50.5))
    for number in range(1, stopped + 1):
        log.add(step(number))
        if number == 6:
            log.checkpoint()
    with log_of(store, done=6) as log:  # the first log was killed before it was closed
        for number in range(7, 11):
            log.add(step(number))
    lines = read_metrics(store)
    assert [line.step for line in lines] == [0, 4, 6, 8, 10]
    assert [line.resumed for line in lines] == [0, 0, 1, 0, 0]
    assert sum(line.rows for line in lines) == 10 * 64
    assert lines[3].loss == pytest.approx(np.mean([1 / 7 + 7 / 4, 1 / 8 + 8 / 4]), rel=1e-6)


def test_resuming_is_counted(store: Store):
    """Six commands run one training: each starts after step `done` and ends with step `last`. The sixth
    starts from the beginning and makes four steps.
    """
    for done, last in ((0, 8), (8, 12), (8, 12), (4, 8), (0, 3), (0, 4)):
        log = log_of(store, done)
        for number in range(done + 1, last + 1):
            log.add(step(number))
        log.checkpoint()
    assert [(line.step, line.resumed, line.rows) for line in read_metrics(store)] == [(0, 5, 0), (4, 0, 256)]


def test_the_score_before_the_first_step_is_written_once(store: Store):
    # The second command finds no checkpoint and measures again. The third finds a checkpoint with the score.
    for score in (50.5, 50.5, None):
        log = log_of(store)
        log.begin(None if score is None else DevMetrics(score))
        log.add(step(1))
        log.checkpoint()
    assert [(line.step, line.dev, line.resumed) for line in read_metrics(store)] == [
        (0, 50.5, 2),
        (1, None, 0),
    ]


def test_a_file_that_is_not_a_metrics_file_is_refused(store: Store):
    store.write(METRICS, b'{"step": 1, "epoch": 0.5}\n{"step": 2, "surprise": 1}\n')
    with pytest.raises(DataError, match="valid metrics in every line"):
        MetricsFile(store)


def test_a_training_without_a_metrics_file_has_no_lines(store: Store):
    assert read_metrics(store) == []


def test_lines_are_written_in_batches(tmp_path: Path):
    class CountingStore(type(open_store(tmp_path))):
        writes = 0

        def write(self, path: str, data: bytes) -> None:
            self.writes += 1
            super().write(path, data)

    store = CountingStore(str(tmp_path))
    with log_of(store) as log:
        for number in range(1, 200 * EVERY + 1):
            log.add(step(number, reps=()))
    assert store.writes <= 4  # the first line, the remaining ones, and two more if the machine is slow
    assert len(read_metrics(store)) == 200


def tracked_run(store: Store, done: int = 0) -> TrackedRun:
    return TrackedRun("simcse-1", store, {"train": {"seed": 7}}, done)


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the scalars that TensorBoard reads from a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    shown = EventAccumulator(str(folder)).Reload()
    return {
        name: [(event.step, event.value) for event in shown.Scalars(name)] for name in shown.Tags()["scalars"]
    }


def test_tensorboard_shows_each_step_once_in_any_store(store: Store, tmp_path: Path):
    pytest.importorskip("tensorboard")
    for done, last in ((0, 12), (8, 16)):
        board = TensorBoard(tracked_run(store, done))
        with TrainingLog(
            MetricsFile(store, step=done), [board], every=EVERY, steps_per_epoch=PER_EPOCH, positives=True
        ) as log:
            for number in range(done + 1, last + 1):
                log.add(step(number), dev=DevMetrics(60.0 + number) if number == 8 else None)
                if number == 8:
                    log.checkpoint()
    location = tmp_path / "fetched"
    location.mkdir()
    for entry in store.list(FOLDER):
        (location / entry.path.rpartition("/")[2]).write_bytes(store.read(entry.path))
    shown = scalars(location)
    lines = read_metrics(store)
    assert shown["loss"] == [(line.step, pytest.approx(line.loss)) for line in lines]
    assert [number for number, _ in shown["loss"]] == [4, 8, 12, 16]
    assert shown["dev"] == [(8, 68.0)]
    assert {
        "parts/near",
        "parts/far",
        "counts/repeated",
        "alignment",
        "waiting",
        "learning_rate",
        "tokens_per_s",
    } <= shown.keys()


def test_a_missing_tracker_package_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert tracker_names(WatchSettings()) == ()
    for name, command in (
        ("tensorboard", r'pip install "manta-embeddings\[watch\]"'),
        ("mlflow", "pip install mlflow"),
        ("wandb", "pip install wandb"),
    ):
        with pytest.raises(
            ConfigError, match=rf"train.watch.trackers: expected the package {name} .* {command}"
        ):
            tracker_names(WatchSettings(trackers=(name,)))


@pytest.mark.skipif(importlib.util.find_spec("mlflow") is not None, reason="MLflow is installed")
def test_a_training_does_not_start_without_its_trackers():
    with pytest.raises(ConfigError, match="the package mlflow"):
        train(Job(train=TrainSettings(watch=WatchSettings(trackers=("mlflow",)))), Stages())


def test_no_trackers_are_opened_if_none_are_configured(tmp_path: Path):
    assert open_trackers(WatchSettings(trackers=()), tracked_run(open_store(tmp_path))) == []


def test_flat_metrics_have_one_level_of_names():
    line = MetricsLine(
        step=4, epoch=0.5, loss=1.5, parts={"info_nce": 1.0}, counts={"repeated": 2}, rows=8, seconds=2.0
    )
    assert flat_metrics(line) == {"epoch": 0.5, "loss": 1.5, "parts/info_nce": 1.0, "counts/repeated": 2.0}


def test_wandb_has_one_run_per_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    log_twice("wandb", open_store(tmp_path / "run"))
    runs = list((tmp_path / "wandb").glob("offline-run-*"))
    assert {run.name.rpartition("-")[2] for run in runs} == {tracked_run(open_store(tmp_path / "run")).key}


def test_mlflow_has_one_run_per_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlflow").as_uri())
    log_twice("mlflow", open_store(tmp_path / "run"))
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("manta").experiment_id])
    losses = client.get_metric_history(run.info.run_id, "loss")
    assert [(metric.step, metric.value) for metric in losses] == [(4, 1.5), (8, 0.5)]
    assert run.data.params == {"train.seed": "7"}
    assert (run.info.run_name, run.info.status) == ("simcse-1", "FINISHED")


def log_twice(name: str, store: Store) -> None:
    """Log to a tracker from two commands, of which the second resumes the training of the first."""
    for line in (MetricsLine(step=4, epoch=0.5, loss=1.5), MetricsLine(step=8, epoch=1.0, loss=0.5)):
        (tracker,) = open_trackers(WatchSettings(trackers=(name,)), tracked_run(store, line.step - 4))
        tracker.log(line)
        tracker.flush()
        tracker.close()
