"""A training on a folder of manifests reads the newest, and resumes with it although a newer one exists."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.flows.train.plan import open_dev, plan_of
from pipeline.flows.train.rank import TrainRank
from pipeline.flows.train.run_folder import RunFolder
from pipeline.flows.train.train import open_training, record_start
from pipeline.settings import Job
from pipeline.store.files.open_store import open_store
from pipeline.text.rows.batches import RankSlice
from tests.flows.conftest import sentences
from tests.flows.train.training import Stop, assert_equal_weights, training_job, until
from tests.text.rows.augmenting import write_manifest

CERT = "train.objective={name: cert, options: {queue: 16, width: 8}}"


def variants(count: int, seed: int) -> dict[str, Any]:
    """Return columns in which every eighth row lacks the first variant, and every tenth row the second."""
    rows = np.arange(count)
    return {
        "text": sentences(count, seed + 2),
        "variant_zh": np.where(rows % 8, sentences(count, seed), None),
        "variant_de": np.where(rows % 10, sentences(count, seed + 1), None),
    }


def job_of(folder: Path, encoder: Path, *overrides: str) -> Job:
    data = (
        f"train.data={{uri: {folder / 'augmented' / 'main'}, columns: {{anchor: variant_zh, positive: "
        "variant_de}, missing: drop}"
    )
    return training_job(folder, encoder, data, CERT, "train.name=null", *overrides)


def trained(job: Job, stop: int = -1) -> tuple[Job, RunFolder]:
    """Train like the command `train`, in this process, up to the last step or until `stop`."""
    job, run = open_training(job)
    plan = plan_of(job.train)
    done_steps = record_start(run, plan, job.encoder.path, [source.uri for source in job.train.data])
    TrainRank(run, job.encoder, job.train, plan, open_dev(job.train), done_steps)(
        RankSlice(), "cpu", until(stop)
    )
    return job, run


def test_cert_reports_its_manifest_and_the_number_of_rows_left_out(tmp_path: Path, encoder: Path):
    uri = write_manifest(open_store(tmp_path), "main", [variants(80, 0), variants(40, 5)])
    job, run = trained(job_of(tmp_path, encoder))
    assert [source.uri for source in job.train.data] == [uri]
    missing = sum(row % 8 == 0 or row % 10 == 0 for rows in (80, 40) for row in range(rows))
    record = run.record()
    assert (record.sources, record.counts) == ((uri,), ({"rows": 120, "unlabelled": 0, "missing": missing},))
    assert run.final_result().steps == (120 - missing) // 8
    card = Path(run.encoder, "README.md").read_text()
    assert f"augmented/main/00000001.json` ({120 - missing} rows)" in card
    assert "without a text" in Path(run.report).read_text()


@pytest.mark.parametrize("name", ["null", "mine"])
def test_a_resumed_training_keeps_its_manifest_and_a_new_one_takes_the_newest(
    tmp_path: Path, encoder: Path, name: str
):
    store = open_store(tmp_path)
    first = write_manifest(store, "main", [variants(80, 0)])
    _, whole = trained(job_of(tmp_path, encoder, f"train.root={tmp_path / 'whole'}"))
    with pytest.raises(Stop):
        trained(job_of(tmp_path, encoder, f"train.name={name}"), stop=5)
    second = write_manifest(store, "main", [variants(80, 0), variants(40, 5)])
    other, _ = open_training(job_of(tmp_path, encoder, "train.name=null", "train.seed=9"))
    assert [source.uri for source in other.train.data] == [second]
    job, run = trained(job_of(tmp_path, encoder, f"train.name={name}"))
    assert [source.uri for source in job.train.data] == [first]
    assert_equal_weights(Path(run.encoder), Path(whole.encoder))
    later, _ = open_training(job_of(tmp_path, encoder, f"train.name={name}"))
    assert [source.uri for source in later.train.data] == [second]  # because the first training has ended


def test_each_folder_of_several_sources_is_resolved_to_its_manifest(tmp_path: Path, encoder: Path):
    store = open_store(tmp_path)
    uris = [
        write_manifest(store, name, [variants(40, number)]) for number, name in enumerate(("main", "more"))
    ]
    training_job(tmp_path, encoder)  # writes sentences.parquet
    data = (
        f"[{tmp_path}/augmented/more, {tmp_path}/sentences.parquet, {{uri: {tmp_path}/augmented/main, "
        "weight: 2}]"
    )
    job, run = open_training(training_job(tmp_path, encoder, f"train.data={data}"))
    assert [source.uri for source in job.train.data] == [uris[1], f"{tmp_path}/sentences.parquet", uris[0]]
    resolved = f"train.data=[{uris[1]}, {tmp_path}/sentences.parquet, {{uri: {uris[0]}, weight: 2}}]"
    assert run.digest == open_training(training_job(tmp_path, encoder, resolved))[1].digest


def test_a_training_whose_rows_were_deleted_starts_again_with_the_newest_manifest(
    tmp_path: Path, encoder: Path
):
    store = open_store(tmp_path)
    write_manifest(store, "main", [variants(80, 0)])
    with pytest.raises(Stop):
        trained(job_of(tmp_path, encoder), stop=5)
    for entry in store.list("units"):
        store.delete(entry.path)
    second = write_manifest(store, "main", [variants(40, 5)])
    assert [source.uri for source in open_training(job_of(tmp_path, encoder))[0].train.data] == [second]
