"""Programs that people watch trainings with: TensorBoard, MLflow, Weights & Biases. None of them is needed, and each is loaded only where the settings want it."""

import hashlib
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pipeline.errors import ConfigError
from pipeline.log import say
from pipeline.settings.training import WatchSettings
from pipeline.store.base import Store, sha256_of
from pipeline.store.local import LocalStore
from pipeline.train.figures import Figures

FOLDER = "tensorboard"  # below that of the training
_INSTALL = {"tensorboard": '"manta-embeddings[watch]"', "mlflow": "mlflow", "wandb": "wandb"}
_NO_FIGURES = {
    "step",
    "parts",
    "counts",
    "same_rows",
    "resumed",
    "rows",
    "seconds",
}  # of a line: what is told apart, or stands in other figures


class Tracker(Protocol):
    """Gets each line as it is ended."""

    def tell(self, line: Figures) -> None: ...

    def keep(self) -> None:
        """There is a checkpoint of all steps so far."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Watched:
    """A training as trackers are to know it. step: the last one that is done; settings: what it is defined by, to be looked at."""

    name: str
    store: Store
    settings: Mapping[str, Any]
    step: int = 0

    @property
    def key(self) -> str:
        """The same whenever this training is gone on with, another for a training in another folder."""
        return hashlib.sha256(self.store.uri.encode()).hexdigest()[:16]


def chosen(settings: WatchSettings) -> tuple[str, ...]:
    """Names of the trackers that the settings want: TensorBoard where it is installed, if they name none. ConfigError, with what to install, for one that is not."""
    if settings.trackers is None:
        return ("tensorboard",) if importlib.util.find_spec("tensorboard") else ()
    for name in settings.trackers:
        if importlib.util.find_spec(name) is None:
            raise ConfigError(
                "train.watch.trackers",
                f"the package {name} for the tracker of that name",
                "none",
                f"pip install {_INSTALL[name]}, or leave {name} out",
            )
    return settings.trackers


def open_trackers(settings: WatchSettings, watched: Watched) -> list[Tracker]:
    """Those that the settings want, which have to be closed. ConfigError as `chosen`, and for a server that cannot be reached."""
    kinds: Mapping[str, Callable[[Watched], Tracker]] = {
        "tensorboard": TensorBoard,
        "mlflow": MLflow,
        "wandb": Wandb,
    }
    opened: list[Tracker] = []
    with ExitStack() as stack:
        for name in chosen(settings):
            opened.append(kinds[name](watched))
            stack.callback(opened[-1].close)
        stack.pop_all()
    return opened


def flat(line: Figures) -> dict[str, float]:
    """Every figure of a line that has a value, by name; parts of the loss and counts with a slash in it."""
    values: dict[str, float] = {
        name: value for name, value in line.model_dump(exclude=_NO_FIGURES).items() if value is not None
    }
    return (
        values
        | {f"parts/{name}": value for name, value in line.parts.items()}
        | {f"counts/{name}": float(count) for name, count in line.counts.items()}
        | {f"same_rows/{name}": value for name, value in line.same_rows.items()}
    )


class TensorBoard:
    """Event files in the folder `tensorboard` of the training: written there, or, where the store is no folder of this machine, beside and stored at each checkpoint.

    A training that is gone on with begins another file, which tells TensorBoard to forget what the earlier ones say of later steps.
    """

    def __init__(self, watched: Watched) -> None:
        from torch.utils.tensorboard import SummaryWriter

        local = isinstance(watched.store, LocalStore)
        self._store, self._copied = (
            watched.store,
            "" if local else tempfile.mkdtemp(prefix="manta-tensorboard-"),
        )
        self._stored: dict[str, str] = {}
        self._writer = SummaryWriter(
            self._copied or f"{watched.store.uri}/{FOLDER}",
            purge_step=watched.step + 1 if watched.step else None,
        )

    def tell(self, line: Figures) -> None:
        for name, value in flat(line).items():
            self._writer.add_scalar(name, value, line.step)

    def keep(self) -> None:
        self._writer.flush()
        for file in Path(self._copied).iterdir() if self._copied else ():
            if self._stored.get(file.name) != (digest := sha256_of(file)):
                self._store.write(f"{FOLDER}/{file.name}", file.read_bytes())
                self._stored[file.name] = digest

    def close(self) -> None:
        self._writer.close()
        self.keep()
        if self._copied:
            shutil.rmtree(self._copied)


class MLflow:
    """A run of the experiment and the server that MLFLOW_EXPERIMENT_NAME and MLFLOW_TRACKING_URI name; one for a training, however often it is gone on with.

    A server that fails later on is left alone, which is said once: a training does not end for it.
    """

    def __init__(self, watched: Watched) -> None:
        import mlflow

        self._mlflow = mlflow
        try:
            self._client = mlflow.MlflowClient()
            self._run: str | None = self._found(watched.key) or self._begun(watched)
        except mlflow.exceptions.MlflowException as error:
            remedy = "check MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME, or leave mlflow out of train.watch.trackers"
            raise ConfigError(
                "train.watch.trackers",
                "an MLflow server or folder that answers",
                str(error).splitlines()[0][:200],
                remedy,
            ) from None

    def tell(self, line: Figures) -> None:
        if self._run is None:
            return
        from mlflow.entities import Metric

        now = self._mlflow.utils.time.get_current_time_millis()
        try:
            self._client.log_batch(
                self._run, [Metric(name, value, now, line.step) for name, value in flat(line).items()]
            )
        except self._mlflow.exceptions.MlflowException as error:
            say(f"MLflow gets no more figures of this training: {str(error).splitlines()[0][:200]}")
            self._run = None

    def keep(self) -> None:
        """Nothing: all is there."""

    def close(self) -> None:
        if self._run is not None:
            with suppress(self._mlflow.exceptions.MlflowException):
                self._client.set_terminated(self._run)

    def _experiment(self) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "manta")
        known = self._client.get_experiment_by_name(name)
        return str(known.experiment_id if known else self._client.create_experiment(name))

    def _found(self, key: str) -> str | None:
        runs = self._client.search_runs([self._experiment()], f"tags.`manta.training` = '{key}'")
        if not runs:
            return None
        self._client.update_run(runs[0].info.run_id, status="RUNNING")
        return str(runs[0].info.run_id)

    def _begun(self, watched: Watched) -> str:
        run = self._client.create_run(
            self._experiment(), tags={"manta.training": watched.key}, run_name=watched.name
        )
        for name, value in _parameters(watched.settings):
            self._client.log_param(run.info.run_id, name, value)
        return str(run.info.run_id)


class Wandb:
    """A run of the project that WANDB_PROJECT names; one for a training, however often it is gone on with. WANDB_MODE=offline writes below WANDB_DIR alone."""

    def __init__(self, watched: Watched) -> None:
        import wandb

        project = os.environ.get("WANDB_PROJECT", "manta")
        try:
            self._run = wandb.init(
                project=project,
                id=watched.key,
                name=watched.name,
                resume="allow",
                config=dict(watched.settings),
            )
        except wandb.errors.Error as error:
            remedy = "check WANDB_API_KEY, set WANDB_MODE=offline, or leave wandb out of train.watch.trackers"
            raise ConfigError(
                "train.watch.trackers",
                "a login to Weights & Biases",
                " ".join(str(error).split())[:200],
                remedy,
            ) from None

    def tell(self, line: Figures) -> None:
        self._run.log(flat(line), step=line.step)

    def keep(self) -> None:
        """Nothing: it sends by itself."""

    def close(self) -> None:
        self._run.finish()


def _parameters(settings: Mapping[str, Any], key: str = "") -> list[tuple[str, str]]:
    """Each setting by its dotted name, as text."""
    found: list[tuple[str, str]] = []
    for name, value in settings.items():
        dotted = f"{key}.{name}" if key else name
        found += _parameters(value, dotted) if isinstance(value, Mapping) else [(dotted, str(value)[:500])]
    return found
