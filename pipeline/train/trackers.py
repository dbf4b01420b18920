"""Trackers that receive the metrics of a training: TensorBoard, MLflow, Weights & Biases.

Each package is optional, and is imported only if the tracker is configured.
"""

import abc
import hashlib
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError
from pipeline.log import announce
from pipeline.settings.training import WatchSettings
from pipeline.store.files.base import Store, sha256_of
from pipeline.train.metrics_line import MetricsLine

FOLDER = "tensorboard"  # folder of the event files, within the training's folder
_PIP_NAMES = {"tensorboard": '"manta-embeddings[watch]"', "mlflow": "mlflow", "wandb": "wandb"}
# Fields of a line that `flat_metrics` returns under other names, or leaves out.
_OMITTED_FIELDS = {"step", "parts", "counts", "same_rows", "dev_geometry", "resumed", "rows", "seconds"}


class Tracker(abc.ABC):
    """Experiment tracker that receives the metrics of one training."""

    @abc.abstractmethod
    def log(self, line: MetricsLine) -> None:
        """Send the metrics of a line."""

    def flush(self) -> None:  # noqa: B027 (optional)
        """Make all metrics so far durable.

        Called at a checkpoint. By default it does nothing, for trackers whose `log` makes metrics durable.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """End the run."""


@dataclass(frozen=True)
class TrackedRun:
    """Identity of a training for trackers."""

    name: str
    """displayed name"""
    store: Store
    """store of the training's folder"""
    settings: Mapping[str, Any]
    """definition of the training, for display"""
    step: int = 0
    """last completed step"""

    @property
    def key(self) -> str:
        """Identifier of the run in the tracker; it stays the same when the training is resumed."""
        return hashlib.sha256(self.store.uri.encode()).hexdigest()[:16]


def tracker_names(settings: WatchSettings) -> tuple[str, ...]:
    """Return the configured trackers; by default TensorBoard if it is installed.

    Raises:
        ConfigError: a package is not installed; the message says how to install it.
    """
    if settings.trackers is None:
        return ("tensorboard",) if importlib.util.find_spec("tensorboard") else ()
    for name in settings.trackers:
        if importlib.util.find_spec(name) is None:
            raise ConfigError(
                "train.watch.trackers",
                f"the package {name} for the tracker {name}",
                "none",
                f"pip install {_PIP_NAMES[name]}, or leave {name} out",
            )
    return settings.trackers


def open_trackers(settings: WatchSettings, tracked: TrackedRun) -> list[Tracker]:
    """Open the configured trackers; the caller has to close them.

    Raises:
        ConfigError: as in `tracker_names`, or for a server that does not answer.
    """
    trackers: list[Tracker] = []
    with ExitStack() as close_on_error:
        for name in tracker_names(settings):
            trackers.append(_TRACKERS[name](tracked))
            close_on_error.callback(trackers[-1].close)
        close_on_error.pop_all()
    return trackers


def flat_metrics(line: MetricsLine) -> dict[str, float]:
    """Return all metrics of a line that have a value, by name; nested ones as parts/NAME, counts/NAME ..."""
    return (
        {name: value for name, value in line.model_dump(exclude=_OMITTED_FIELDS).items() if value is not None}
        | {f"parts/{name}": value for name, value in line.parts.items()}
        | {f"counts/{name}": float(count) for name, count in line.counts.items()}
        | {f"same_rows/{name}": value for name, value in line.same_rows.items()}
        | {f"dev_geometry/{name}": value for name, value in line.dev_geometry.items()}
    )


class TensorBoard(Tracker):
    """Event files in the folder `tensorboard` of the training.

    If the store is not a local folder, files are written to a temporary folder, and copied to the store at
    each checkpoint. A resumed training starts another file, which makes TensorBoard ignore the repeated steps
    in earlier files.
    """

    def __init__(self, tracked: TrackedRun) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._store = tracked.store
        self._temporary = tempfile.mkdtemp(prefix="manta-tensorboard-") if tracked.store.shared else None
        self._stored_digests: dict[str, str] = {}  # by file name
        self._writer = SummaryWriter(
            self._temporary or f"{tracked.store.uri}/{FOLDER}",
            purge_step=tracked.step + 1 if tracked.step else None,
        )

    def log(self, line: MetricsLine) -> None:
        for name, value in flat_metrics(line).items():
            self._writer.add_scalar(name, value, line.step)

    def flush(self) -> None:
        self._writer.flush()
        if not self._temporary:
            return
        for file in Path(self._temporary).iterdir():
            digest = sha256_of(file)
            if self._stored_digests.get(file.name) != digest:
                self._store.write(f"{FOLDER}/{file.name}", file.read_bytes())
                self._stored_digests[file.name] = digest

    def close(self) -> None:
        self._writer.close()
        self.flush()
        if self._temporary:
            shutil.rmtree(self._temporary)


class MLflow(Tracker):
    """Run in the experiment MLFLOW_EXPERIMENT_NAME of the server MLFLOW_TRACKING_URI.

    A resumed training continues its run. If the server fails during the training, this is logged once, and
    the training continues without the tracker.
    """

    def __init__(self, tracked: TrackedRun) -> None:
        import mlflow

        self._mlflow = mlflow
        try:
            self._client = mlflow.MlflowClient()
            self._run: str | None = self._open(tracked)
        except mlflow.exceptions.MlflowException as error:
            raise ConfigError(
                "train.watch.trackers",
                "an MLflow server or folder that answers",
                str(error).splitlines()[0][:200],
                "check MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME, "
                "or leave mlflow out of train.watch.trackers",
            ) from None

    def log(self, line: MetricsLine) -> None:
        if self._run is None:
            return
        from mlflow.entities import Metric

        now = self._mlflow.utils.time.get_current_time_millis()
        try:
            self._client.log_batch(
                self._run, [Metric(name, value, now, line.step) for name, value in flat_metrics(line).items()]
            )
        except self._mlflow.exceptions.MlflowException as error:
            announce(f"MLflow gets no more metrics of this training: {str(error).splitlines()[0][:200]}")
            self._run = None

    def close(self) -> None:
        if self._run is not None:
            with suppress(self._mlflow.exceptions.MlflowException):
                self._client.set_terminated(self._run)

    def _open(self, tracked: TrackedRun) -> str:
        """Return the id of the training's run, which is created if there is none."""
        experiment_id = mlflow_experiment(self._client)
        runs = self._client.search_runs([experiment_id], f"tags.`manta.training` = '{tracked.key}'")
        if runs:
            self._client.update_run(runs[0].info.run_id, status="RUNNING")
            return str(runs[0].info.run_id)
        run = self._client.create_run(
            experiment_id, tags={"manta.training": tracked.key}, run_name=tracked.name
        )
        for name, value in flat_settings(tracked.settings):
            self._client.log_param(run.info.run_id, name, value)
        return str(run.info.run_id)


def mlflow_experiment(client: Any) -> str:
    """Return the id of the experiment MLFLOW_EXPERIMENT_NAME, manta by default. It is created if missing."""
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "manta")
    experiment = client.get_experiment_by_name(name)
    return str(experiment.experiment_id if experiment else client.create_experiment(name))


class Wandb(Tracker):
    """Run in the project WANDB_PROJECT.

    A resumed training continues its run. With WANDB_MODE=offline, metrics are written to WANDB_DIR only.
    """

    def __init__(self, tracked: TrackedRun) -> None:
        import wandb

        try:
            self._run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", "manta"),
                id=tracked.key,
                name=tracked.name,
                resume="allow",
                config=dict(tracked.settings),
            )
        except wandb.errors.Error as error:
            raise ConfigError(
                "train.watch.trackers",
                "a login to Weights & Biases",
                " ".join(str(error).split())[:200],
                "check WANDB_API_KEY, set WANDB_MODE=offline, or leave wandb out of train.watch.trackers",
            ) from None

    def log(self, line: MetricsLine) -> None:
        self._run.log(flat_metrics(line), step=line.step)

    def close(self) -> None:
        self._run.finish()


def flat_settings(settings: Mapping[str, Any], key: str = "") -> list[tuple[str, str]]:
    """Return (dotted name, value) of each setting below `key`, as text."""
    parameters: list[tuple[str, str]] = []
    for name, value in settings.items():
        dotted = f"{key}.{name}" if key else name
        if isinstance(value, Mapping):
            parameters += flat_settings(value, dotted)
        else:
            parameters.append((dotted, str(value)[:500]))
    return parameters


_TRACKERS: Mapping[str, Callable[[TrackedRun], Tracker]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": Wandb,
}
