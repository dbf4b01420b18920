"""A training on several Ray nodes, with its checkpoints in an object store, continues if a node is lost."""

import time
from pathlib import Path

import psutil
import pytest

from pipeline.models.folder.folder import open_folder
from pipeline.settings import EncoderSettings
from pipeline.store.files.open_store import open_store
from tests.flows.conftest import StartJob, finish_job
from tests.flows.night import test_nodes
from tests.flows.train.test_train import arguments, workers
from tests.flows.train.training import write_sentences, write_sts

pytestmark = pytest.mark.slow
_PATIENCE_S = 300.0

environment, nodes = test_nodes.environment, test_nodes.nodes


def last_step(run: str) -> int:
    """Return the step of the last checkpoint."""
    return max(
        (int(entry.path.split("-")[1]) for entry in open_store(run).list("checkpoints", ".json")), default=0
    )


def has_worker(raylet: int) -> bool:
    """Return whether a worker of the training runs on that node."""
    try:
        return bool(workers(raylet))
    except psutil.Error:
        return False


def test_a_lost_node_loses_only_steps_after_the_last_checkpoint(
    start_job: StartJob,
    s3: str,
    nodes: test_nodes.Nodes,
    environment: dict[str, str],
    encoder: Path,
    tmp_path: Path,
):
    write_sentences(tmp_path / "sentences.parquet", 101)
    write_sts(tmp_path / "sts.parquet")
    root = f"{s3}/{tmp_path.name}"
    training = start_job(
        "train",
        arguments(tmp_path, encoder, f"train.root={root}", f"cluster.address={nodes.address}"),
        environment,
    )
    deadline = time.monotonic() + _PATIENCE_S
    while last_step(f"{root}/run") < 40 and training.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    used = [has_worker(raylet) for raylet in nodes.raylets]
    assert sum(used) == 2  # each worker has a node of its own
    nodes.order(f"remove {used.index(True, 1) - 1}")  # not the head, which is the first
    result, log = finish_job(training)
    assert (result["status"], result["steps"]) == ("trained", 240)
    assert log.count("a training worker is lost") == 1
    assert open_folder(EncoderSettings(path=result["encoder"])).space_id == result["space_id"]
