"""A night with a candidate is one run of MLflow; without MLflow, or its server, the night is not lost."""

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.errors import ConfigError, GatesRefused
from pipeline.flows.night.nightly import nightly
from pipeline.log import Stages, listening
from pipeline.settings import Job

pytestmark = pytest.mark.usefixtures("cluster")


@pytest.mark.skipif(importlib.util.find_spec("mlflow") is not None, reason="MLflow is installed")
def test_a_missing_package_ends_the_night_before_any_work(make_job: Callable[..., Job], tmp_path: Path):
    with pytest.raises(ConfigError, match="pip install mlflow"):
        nightly(make_job("release.mlflow=true"), Stages())
    assert not list((tmp_path / "releases").glob("units/*"))


def runs_of(client: Any) -> list[Any]:
    """Return the runs of the experiment, the oldest first."""
    experiment = client.get_experiment_by_name("nights")
    found = client.search_runs([experiment.experiment_id]) if experiment else []
    return sorted(found, key=lambda run: run.info.start_time)


def test_each_candidate_is_a_run_with_settings_metrics_and_report(
    make_job: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlflow").as_uri())
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "nights")
    client = mlflow.MlflowClient()

    published = nightly(make_job("release.mlflow=true"), Stages())
    nightly(make_job("release.mlflow=true"), Stages())  # nothing changed: no run
    part = tmp_path / "corpus" / "part-0.parquet"
    pq.write_table(pq.read_table(part).slice(5), part)
    with pytest.raises(GatesRefused) as refused:
        nightly(make_job("release.mlflow=true", "gates.max_size_gib=1e-9"), Stages())

    first, second = runs_of(client)
    assert (first.info.status, second.info.status) == ("FINISHED", "FAILED")
    assert first.data.params["corpus.uri"] == str(tmp_path / "corpus")
    assert not any(name.startswith("train.") for name in first.data.params)
    recall = published.facts["gates"]["recall_at_10"]["value"]
    assert first.data.metrics["manta_gate_value/recall_at_10"] == recall
    assert first.data.metrics["manta_release_rows"] == published.rows
    assert first.data.metrics["seconds/encode"] > 0
    assert second.data.metrics["manta_gate_passed/size_gib"] == 0
    assert second.data.metrics["manta_changed_rows/deleted"] == 5
    for run, report in (
        (first, published.facts["report"]),
        (second, f"{refused.value.candidate}/report.html"),
    ):
        stored = client.download_artifacts(run.info.run_id, "report.html", str(tmp_path))
        assert Path(stored).read_bytes() == Path(report).read_bytes()


SERVER_WITHOUT_UPLOADS = """
import types

class MlflowClient:
    def get_experiment_by_name(self, name):
        return types.SimpleNamespace(experiment_id="1")

    def create_run(self, experiment, tags):
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id="run"))

    def log_batch(self, *values, **more_values): ...

    def log_artifact(self, run, file):
        raise PermissionError(13, "Permission denied", "/mlruns")

    def set_terminated(self, run, status):
        with open(PATH, "a") as file:
            file.write(status + "\\n")
"""


@pytest.fixture
def unimported() -> Iterator[None]:
    """Let the test import another package mlflow, of which nothing remains."""
    before = _take_mlflow()
    yield
    _take_mlflow()
    sys.modules.update(before)


def _take_mlflow() -> dict[str, Any]:
    names = [name for name in sys.modules if name.partition(".")[0] == "mlflow"]
    return {name: sys.modules.pop(name) for name in names}


@pytest.mark.usefixtures("unimported")
def test_a_refused_upload_changes_no_outcome(
    make_job: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Uploads raise errors that are none of MLflow's, such as those of the client of a store."""
    package = tmp_path / "packages" / "mlflow"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f"PATH = {str(tmp_path / 'ended')!r}{SERVER_WITHOUT_UPLOADS}")
    (package / "entities.py").write_text("def Metric(*parts): ...\n\n\ndef Param(*parts): ...\n")
    monkeypatch.syspath_prepend(package.parent)
    with listening() as said:
        outcome = nightly(make_job("release.mlflow=true"), Stages())
        with pytest.raises(GatesRefused):
            nightly(make_job("release.mlflow=true", "whiten.mode=on", "gates.max_size_gib=1e-9"), Stages())
    assert outcome.status == "published"
    assert sum("PermissionError: [Errno 13] Permission denied" in sentence for sentence in said) == 2
    assert (tmp_path / "ended").read_text().split() == ["FINISHED", "FAILED"]


def test_a_server_that_does_not_answer_is_said_and_the_night_publishes(
    make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with listening() as said:
        outcome = nightly(make_job("release.mlflow=true"), Stages())
    assert outcome.status == "published"
    assert any(sentence.startswith("MLflow did not take all of this night") for sentence in said)
