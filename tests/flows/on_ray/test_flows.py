"""Flows on pools of Ray's actors store and find the same bytes as flows in one process."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.flows.augment.augment import augment
from pipeline.flows.evaluate.evaluate import evaluate
from pipeline.flows.night import ingest_workers
from pipeline.flows.night.nightly import nightly
from pipeline.flows.night.single_stage import encode_corpus
from pipeline.flows.train.train import train
from pipeline.flows.transform.train_flow import train_flow
from pipeline.flows.workers.cluster import connect
from pipeline.flows.workers.interface import Workers
from pipeline.flows.workers.local import LocalWorkers
from pipeline.flows.workers.tasks import Pool
from pipeline.index.search.search import open_release
from pipeline.log import Stages
from pipeline.models.inference.encoder import load_encoder
from pipeline.settings import ClusterSettings, EncoderSettings, EncodeSettings, Job
from pipeline.settings.training import SourceSettings
from tests.flows.augment.test_augment import LENIENT, expected_shuffle, rows_of, shuffles, worked_on
from tests.flows.conftest import ON_RAY, sentences, unit_hashes
from tests.flows.documents.test_readme import blocks
from tests.flows.evaluate.evaluating import job as evaluation
from tests.flows.evaluate.evaluating import write_pairs
from tests.flows.train.test_mine import job_of, mined, write_questions
from tests.flows.train.test_mine import rows_of as rows_of_pairs
from tests.flows.transform.test_train_flow import stored, trained, training

pytestmark = pytest.mark.usefixtures("ray_cluster")
MakeJob = Callable[..., Job]


def test_units_encoded_by_actors_have_the_bytes_of_one_process(
    child: LocalWorkers, make_job: MakeJob, tmp_path: Path
):
    with connect(ClusterSettings(), Stages(), local=child):
        _, _, alone = encode_corpus(
            make_job("encode.unit_rows=200", f"release.root={tmp_path / 'alone'}"), Stages()
        )
    store, _, on_ray = encode_corpus(make_job("encode.unit_rows=200", "cluster.workers=1"), Stages())
    assert (on_ray, on_ray.rows) == (alone, 400)
    assert unit_hashes(Path(store.uri)) == unit_hashes(tmp_path / "alone")


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        ("whiten.mode=off", "index.kind=flat", "index.shards=1", "cluster.workers=1"),
        ("whiten.mode=on", "index.kind=IVF8,Flat"),
    ],
)
def test_a_night_on_actors_has_the_bytes_of_one_process(
    child: LocalWorkers, make_job: MakeJob, tmp_path: Path, settings: tuple[str, ...]
):
    with connect(ClusterSettings(), Stages(), local=child):
        alone = nightly(
            make_job("gates.recall_at_10=0.5", *settings, f"release.root={tmp_path / 'alone'}"), Stages()
        )
    on_ray = nightly(make_job("gates.recall_at_10=0.5", *settings, ON_RAY), Stages())
    assert (
        (on_ray.status, on_ray.release, on_ray.rows)
        == (alone.status, alone.release, alone.rows)
        == ("published", 1, 400)
    )
    assert unit_hashes(Path(on_ray.root)) == unit_hashes(Path(alone.root))
    releases = [open_release(outcome.root) for outcome in (on_ray, alone)]
    assert releases[0].manifest.index == releases[1].manifest.index, "files are named with their sha256"
    assert releases[0].search(sentences(400)[:20], 5) == releases[1].search(sentences(400)[:20], 5)


@pytest.mark.usefixtures("shuffle_method")
@pytest.mark.slow
def test_each_model_runs_on_its_own_pool_in_turn(make_job: MakeJob, tmp_path: Path):
    made = augment(
        make_job(ON_RAY, LENIENT, "augment.unit_rows=50", shuffles(tmp_path, together=False)), Stages()
    )
    rows = rows_of(made).values()
    assert len(rows) == 400
    assert [row for row in rows if row["variant_back"] != expected_shuffle(row)] == []
    assert [worked.title for worked in made.model_work] == ["back: shuffle a", "back: shuffle b"]
    assert sum(worked.stats.texts for worked in made.model_work) == len(worked_on(tmp_path / "journal"))


@pytest.mark.usefixtures("shuffle_method")
@pytest.mark.slow
def test_a_killed_actor_changes_no_byte(child: LocalWorkers, make_job: MakeJob, tmp_path: Path):
    with connect(ClusterSettings(), Stages(), local=child):
        alone = augment(
            make_job(
                LENIENT, "augment.unit_rows=50", shuffles(tmp_path), f"release.root={tmp_path / 'quiet'}"
            ),
            Stages(),
        )
    made = augment(
        make_job(ON_RAY, LENIENT, "augment.unit_rows=50", shuffles(tmp_path, dies=str(tmp_path / "died"))),
        Stages(),
    )
    assert (tmp_path / "died").exists()
    assert [unit.sha256 for unit in made.manifest.units] == [unit.sha256 for unit in alone.manifest.units]


@pytest.mark.slow
def test_a_flow_is_trained_to_the_same_bytes_and_reused(ray_cluster: Workers, tmp_path: Path):
    alone, on_ray = training(tmp_path / "alone"), training(tmp_path / "ray")
    assert alone.id == on_ray.id
    flow = trained(alone)
    with Stages()("train") as bar:
        assert train_flow(on_ray, ray_cluster, Pool(1, cpus=0.5), bar).to_bytes() == flow.to_bytes()
    assert (bar.total, bar.stage.done) == (70 * 32, 70 * 32)
    assert stored(alone) == stored(on_ray)
    assert sorted(Path(path).name for path in stored(on_ray)) == sorted(
        [f"{flow.transform_id[:24]}.safetensors", "record.json"]
    )
    assert train_flow(on_ray, ray_cluster, Pool(1, cpus=1000), bar).to_bytes() == flow.to_bytes(), (
        "a stored flow is read, and no worker of that impossible size is asked for"
    )


@pytest.mark.slow
def test_mining_before_a_training_finds_the_pairs_of_one_process(
    encoder: Path, tmp_path: Path, child: LocalWorkers
):
    folder, _ = write_questions(tmp_path / "pairs")
    with connect(ClusterSettings(), Stages(), local=child):
        alone = mined(job_of(encoder), folder, tmp_path / "alone")[1]
    job = job_of(
        encoder,
        "train.mine.enabled=true",
        f"train.root={tmp_path}",
        f"train.data={{uri: {folder}, columns: {{anchor: question}}}}",
        "train.order.batch_rows=16",
        "train.max_steps=2",
        "train.name=run",
    )
    trained = train(job, Stages())
    folders = list((tmp_path / "mined/pairs").glob("*/rows"))
    assert len(folders) == 1
    assert rows_of_pairs(SourceSettings(uri=str(folders[0]))) == alone
    record = json.loads((tmp_path / "run/run.json").read_text())
    assert [counts["rows"] for counts in record["counts"]] == [len(alone)]
    assert trained.result.steps == 2


@pytest.mark.slow
def test_an_evaluation_in_a_bucket_has_the_same_scores(
    s3: str, child: LocalWorkers, encoder: Path, tmp_path: Path
):
    write_pairs(tmp_path / "tasks/sts/STS12.parquet", 60)
    with connect(ClusterSettings(), Stages(), local=child):
        alone = evaluate(evaluation(tmp_path, encoder), Stages())
    made = evaluate(
        evaluation(tmp_path, encoder, f"evaluate.root={s3}/{tmp_path.name}", ON_RAY, "encode.unit_rows=30"),
        Stages(),
    )
    assert alone.measured
    assert made.encoded == alone.encoded
    assert [each.results[0].result.value for each in made.measured] == [
        each.results[0].result.value for each in alone.measured
    ]
    assert [each.results[0].draws for each in made.measured] == [
        each.results[0].draws for each in alone.measured
    ]


def test_the_documented_code_adds_a_vector_column_to_a_dataset(encoder: Path, tmp_path: Path):
    block = next(block for block in blocks("README.md") if "EncodeBlocks" in block)
    pq.write_table(pa.table({"text": sentences(30)}), tmp_path / "corpus.parquet")
    names: dict[str, Any] = {}
    exec(
        block.replace('"corpus"', repr(str(tmp_path / "corpus.parquet"))).replace(
            "all-MiniLM-L6-v2", str(encoder)
        ),
        names,
    )
    rows = names["rows"].take_all()
    vectors = load_encoder(EncoderSettings(path=str(encoder)), EncodeSettings()).encode(
        [row["text"] for row in rows]
    )
    np.testing.assert_array_equal(np.array([row["vector"] for row in rows], np.float32), vectors)


@pytest.mark.slow
def test_a_corpus_that_actors_read_has_the_bytes_of_one_process(
    child: LocalWorkers, make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    roots = [tmp_path / "alone", tmp_path / "on-ray"]
    with connect(ClusterSettings(), Stages(), local=child):
        nightly(make_job(f"release.root={roots[0]}"), Stages())
    monkeypatch.setattr(ingest_workers, "SMALL_INPUT", 0)
    stages = Stages()
    assert nightly(make_job(f"release.root={roots[1]}", ON_RAY), stages).status == "published"
    assert "ingest: cluster" in stages.seconds()
    on_actors, alone = (
        {
            file.relative_to(root).as_posix(): file.read_bytes()
            for folder in ("keys", "units/corpus")
            for file in (root / folder).rglob("*")
            if file.is_file()
        }
        for root in roots[::-1]
    )
    assert alone
    assert on_actors == alone
