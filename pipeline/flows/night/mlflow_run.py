"""Log a night as a run of MLflow, an optional dependency: settings, metrics and the report."""

import contextlib
import importlib.util
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError, GatesRefused
from pipeline.flows.night.publish import NightOutcome
from pipeline.flows.workers import metrics
from pipeline.flows.workers.metrics import MetricSeries
from pipeline.log import Stages, announce
from pipeline.settings import Job
from pipeline.store.files.base import Store
from pipeline.train.trackers import flat_settings, mlflow_experiment

_UNUSED = {"evaluate", "train", "augment", "pairs"}  # sections of a job that a night does not read


@dataclass
class MLflowNight:
    """Settings, metrics and outcome of a night, sent to MLflow when it ends."""

    job: Job
    store: Store
    stages: Stages
    outcome: NightOutcome | None = None
    """set by the night if it has a candidate"""
    _values: dict[str, float] = field(default_factory=dict)

    def record(self, series: MetricSeries, value: float, labels: Mapping[str, str]) -> None:
        """Keep the value of a gauge.

        Counters are left out, because the driver's do not include the workers'.
        """
        if series.kind == "Gauge":
            self._values["/".join((series.name, *labels.values()))] = value

    def send(self, status: str, report: str) -> None:
        """Create the run. A failure is announced, and does not change how the night ends.

        Args:
            status: end of the night: published, held, refused.
            report: URI of the report, in the store.
        """
        try:
            import mlflow

            client = mlflow.MlflowClient()
            run_id = client.create_run(
                mlflow_experiment(client), tags={"manta.root": self.store.uri, "manta.outcome": status}
            ).info.run_id
            try:
                self._log(client, run_id)
                with tempfile.TemporaryDirectory(prefix="manta-") as folder:
                    file = Path(folder, "report.html")
                    file.write_bytes(self.store.read(report.removeprefix(f"{self.store.uri}/")))
                    client.log_artifact(run_id, str(file))
            finally:
                client.set_terminated(run_id, "FAILED" if status == "refused" else "FINISHED")
        except Exception as error:  # uploads raise the errors of many clients, and the night is published
            why = " ".join(f"{type(error).__name__}: {error}".split())
            announce(f"MLflow did not take all of this night: {why[:200]}")

    def _log(self, client: Any, run_id: str) -> None:
        from mlflow.entities import Metric, Param

        now = int(1_000 * time.time())
        seconds = {f"seconds/{stage.name}": stage.seconds for stage in self.stages.finished}
        params = [Param(*each) for each in flat_settings(self.job.model_dump(mode="json", exclude=_UNUSED))]
        for start in range(0, len(params), 100):  # the most that a request takes
            client.log_batch(run_id, params=params[start : start + 100])
        values = self._values | seconds
        client.log_batch(run_id, [Metric(name, value, now, 0) for name, value in values.items()])


@contextlib.contextmanager
def mlflow_night(job: Job, store: Store, stages: Stages) -> Iterator[MLflowNight]:
    """Log the night that runs in the block to MLflow, if release.mlflow is set and the night has a candidate.

    Raises:
        ConfigError: MLflow is not installed.
    """
    night = MLflowNight(job, store, stages)
    if not job.release.mlflow:
        yield night
        return
    if importlib.util.find_spec("mlflow") is None:
        raise ConfigError(
            "release.mlflow", "the package mlflow", "none", "pip install mlflow, or set release.mlflow=false"
        )
    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")  # MLflow warns on machines without git
    metrics.listeners.append(night.record)
    try:
        yield night
    except GatesRefused as refused:
        night.send("refused", f"{refused.candidate}/report.html")
        raise
    finally:
        metrics.listeners.remove(night.record)
    if night.outcome is not None and night.outcome.status != "overtaken":  # its report is another night's
        night.send(night.outcome.status, night.outcome.facts["report"])
