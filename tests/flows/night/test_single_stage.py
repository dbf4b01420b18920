"""Files of a single stage can be read with plain tools, and a second run changes nothing."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from pipeline.errors import ConfigError
from pipeline.flows.context import FlowContext
from pipeline.flows.encode.encode import encode
from pipeline.flows.night.gates.audit import remeasure
from pipeline.flows.night.nightly import nightly
from pipeline.flows.night.planning.night_plan import Assumptions, plan
from pipeline.flows.night.single_stage import encode_corpus, fit_corpus_transform, index_corpus
from pipeline.flows.workers.nodes import Node
from pipeline.flows.workers.ray_workers import RayWorkers
from pipeline.log import Stages
from pipeline.settings import Job
from pipeline.stats.moments import Moments
from pipeline.store.files.open_store import open_store
from pipeline.store.records.units import StageRecord
from pipeline.store.releases.release import Releases
from pipeline.store.rows.schema import vector_matrix
from tests.models.folders import edit_json, save_folder

Make = Callable[..., Job]
pytestmark = pytest.mark.usefixtures("cluster")


def stored_vectors(root: str, manifest: StageRecord) -> np.ndarray:
    return np.concatenate(
        [
            vector_matrix(pq.read_table(Path(root, unit.path))["vector"]).astype(np.float64)
            for unit in manifest.units
        ]
    )


def test_encoding_again_returns_the_same_manifest_and_no_second_warning(
    make_job: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("pipeline.models.folder.folder._announced", set())
    folder = save_folder(tmp_path / "dot", "bert")
    edit_json(folder / "config_sentence_transformers.json", similarity_fn_name="dot")
    job = make_job(f"encoder.path={folder}")
    _, corpus, first = encode_corpus(job, Stages())
    _, _, again = encode_corpus(job, Stages())
    assert capsys.readouterr().err.count(f"warning: {folder}: similarity_fn_name is dot") == 1
    assert again == first
    assert first.rows == corpus.rows == 400
    assert first.counts()["tokens"] > 400 * 8


def test_too_many_workers_are_refused_even_without_work(make_job: Make):
    """Otherwise the night would build the index before its gates, which encode canary texts, find no GPU."""
    store, corpus, _ = encode_corpus(make_job(), Stages())
    with pytest.raises(ConfigError, match="1 CPU and 1 GPU for one worker, found one node of 2 CPUs"):
        encode(
            FlowContext(make_job("cluster.gpus_per_worker=1"), store, RayWorkers((Node(2),)), Stages()),
            corpus,
        )
    with pytest.raises(ConfigError, match="room for 2 on one node"):
        encode(
            FlowContext(make_job("cluster.workers.min=3"), store, RayWorkers((Node(2),)), Stages()), corpus
        )


def test_a_small_night_refuses_more_workers_than_cpus_and_publishes_nothing(make_job: Make):
    """One process suffices for this corpus, but the same settings would be refused for a larger one."""
    job = make_job("cluster.workers.min=1000", "cluster.small_rows=5000")
    with pytest.raises(ConfigError, match=r"room for 1000 workers .*found room for"):
        nightly(job, Stages())
    assert Releases(open_store(job.release.root)).current() is None


def test_whitened_units_have_identity_covariance(make_job: Make):
    job = make_job("whiten.mode=on", "whiten.write_vectors=true", "whiten.k=20")
    store, decision, written = fit_corpus_transform(job, Stages())
    assert written is not None
    assert decision.fitted is not None
    whitened = stored_vectors(store.uri, written)
    assert whitened.shape == (400, 20)
    np.testing.assert_allclose(np.cov(whitened.T, bias=True), np.eye(20), atol=2e-3)
    assert len({unit.space_id for unit in written.units}) == 1
    assert written.units[0].space_id != decision.fitted.space_id, (
        "whitened vectors are another space than raw ones"
    )


def test_moments_of_units_merge_to_those_of_all_vectors(make_job: Make):
    job = make_job("whiten.mode=off")
    _, _, vectors = encode_corpus(job, Stages())
    _, decision, _ = fit_corpus_transform(job, Stages())
    whole = Moments.of(stored_vectors(job.release.root, vectors))
    np.testing.assert_allclose(decision.moments.covariance(), whole.covariance(), atol=1e-12)
    assert decision.moments.count == 400


def test_the_unit_size_does_not_change_vectors(make_job: Make, tmp_path: Path):
    small, large = make_job(), make_job("encode.unit_rows=400", f"release.root={tmp_path / 'other'}")
    found = [encode_corpus(job, Stages())[2] for job in (small, large)]
    assert [len(manifest.units) for manifest in found] == [8, 1]
    np.testing.assert_array_equal(
        *(
            stored_vectors(job.release.root, manifest)
            for job, manifest in zip((small, large), found, strict=True)
        )
    )


def test_the_index_command_publishes_nothing(make_job: Make):
    job = make_job("whiten.mode=off", "index.kind=IVF8,Flat")
    store, built = index_corpus(job, Stages())
    assert built.rows == 400
    assert all(store.exists(ref.path) for ref in (*built.files, *built.ids))
    assert store.list("commits") == []
    assert store.list("releases") == []


def test_half_precision_vectors_can_be_stored_searched_and_evaluated(make_job: Make):
    job = make_job("encode.vectors=float16", "whiten.mode=off", "gates.recall_at_10=0.9")
    outcome = nightly(job, Stages())
    unit = pq.read_schema(next(Path(outcome.root).glob("units/vectors/*/*.parquet")))
    assert unit.field("vector").type.value_type == pa.float16()
    gates = remeasure(job, Stages()).gates
    assert {name for name, gate in gates.items() if not gate.passed} == set()
    assert gates["recall_at_10"].value == 1.0


def test_a_plan_writes_nothing_and_knows_the_rows(make_job: Make, tmp_path: Path):
    job = make_job()
    planned = plan(job, Stages(), seconds=0.2)
    assert (planned.rows, planned.exact, planned.files, planned.units) == (400, True, 3, 8)
    assert planned.vector_bytes == 400 * 48 * 4
    assert planned.index.kind == "flat"
    assert planned.rows_per_s > 0
    assert not (tmp_path / "releases").exists()


def test_a_plan_for_more_rows_on_named_nodes_scales_this_corpus(make_job: Make):
    job = make_job("encode.unit_rows=32768", "cluster.nodes.count=10", "cluster.nodes.cpus=16")
    assumed = Assumptions(rows=10**9, rows_per_s=1_000.0)
    planned = plan(job, Stages(), seconds=0.1, assumed=assumed)
    assert (planned.rows, planned.workers) == (10**9, 160)
    assert 1 < planned.encode_s / (10**9 / 1_000 / 160) < 1.1
    assert planned.index.kind != "flat"
    assert planned.cost.hours > planned.encode_s / 3_600
    assert planned.cost.node_hours == 10 * planned.cost.hours
    json.dumps(planned.facts())


def test_a_plan_for_gpus_that_are_not_here_asks_for_their_speed(make_job: Make):
    job = make_job("cluster.gpus_per_worker=1", "cluster.nodes.count=1", "cluster.nodes.gpus=1")
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(ConfigError, match="--rows-per-s"):
        plan(job, Stages(), seconds=0.1)
    assert plan(job, Stages(), seconds=0.1, assumed=Assumptions(rows_per_s=9.0)).rows_per_s == 9.0
