"""The Universal Sentence Encoder from its configs to nights: a new deep averaging network, or a new
Transformer, is trained, resumed, stored and searched.
"""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config import load_settings
from pipeline.flows.night.nightly import nightly
from pipeline.flows.train.rank import TrainRank
from pipeline.flows.train.train import open_training
from pipeline.index.search import open_release
from pipeline.log import Stages
from pipeline.models.folder.folder import open_folder
from pipeline.models.inference.encoder import load_encoder
from pipeline.models.trainable.encoder import load_trainable
from pipeline.objectives import TrainedModel
from pipeline.settings import EncoderSettings, EncodeSettings, Job
from tests.flows.conftest import job_arguments, sentences, write_corpus
from tests.flows.train.test_rank import Stop, train
from tests.flows.train.training import losses, unstarted, write_books
from tests.train.test_start import write_nli

CONFIGS = Path(__file__).parents[3] / "jobs/configs/train"
SMALL = {
    "dan": ("train.dan={width: 16, word_dim: 8, buckets: 512}", "train.optimizer.learning_rate=0.02"),
    "transformer": (
        "train.transformer={width: 16, layers: 2, heads: 2, output: 16}",
        "train.optimizer.learning_rate=0.01",
    ),
}
KINDS = pytest.mark.parametrize("kind", SMALL)
REAL = {
    "dan": (
        "train.dan={width: 128, word_dim: 100, buckets: 16384, vocabulary: 5000}",
        "train.order.batch_rows=128",
        "train.optimizer.learning_rate=0.002",
    ),
    # its score is below its start for the first 300 steps
    "transformer": (
        "train.transformer={width: 32, layers: 1, heads: 2, output: 32, vocabulary: 5000}",
        "train.order.batch_rows=64",
        "train.optimizer.learning_rate=0.005",
        "train.dropout=0",
        "train.max_length=30",
        "train.epochs=2",
    ),
}
INFERENCE = (
    '{name: classification, options: {features: [u, v, "|u-v|", "u*v"], hidden: 512, nonlinear: true}}'
)


@pytest.fixture(autouse=True)
def _own_cache(cache: Path) -> None:
    """New encoders are built in a cache of the test's own."""


def write_conversations(file: Path, count: int = 192) -> Path:
    """Write inputs, and responses of the same words in another order."""
    inputs = sentences(count, seed=5)
    responses = [" ".join(reversed(text.split())) for text in inputs]
    pq.write_table(pa.table({"anchor": inputs, "positive": responses}), file)
    return file


def rank_for(kind: str, folder: Path, name: str = "run", *overrides: str) -> TrainRank:
    """Return the training of the config, made small: 12 steps over 192 pairs."""
    small = (
        f"train.data={write_conversations(folder / 'conversations.parquet')}",
        *SMALL[kind],
        "train.order.batch_rows=16",
    )
    return unstarted(CONFIGS / f"use-{kind}.yaml", folder, name, *small, *overrides)


@KINDS
def test_a_stopped_training_resumes_to_the_same_bits_and_learns(tmp_path: Path, kind: str):
    whole, parts = rank_for(kind, tmp_path), rank_for(kind, tmp_path, "parts")
    assert whole.plan.steps == 12
    train(whole)
    with pytest.raises(Stop):
        train(parts, 6)
    train(parts)
    spaces = [open_folder(EncoderSettings(path=rank.run.encoder)).space_id for rank in (whole, parts)]
    assert spaces[0] == spaces[1] != open_folder(whole.encoder).space_id
    result = whole.run.result()
    assert result.metrics["end_loss"] < 0.95 * result.metrics["start_loss"]
    assert losses(tmp_path / "trainings" / "run")[-1] < losses(tmp_path / "trainings" / "run")[0]


@KINDS
@pytest.mark.parametrize(("objective", "write"), [("skip_thought", write_books), (INFERENCE, write_nli)])
def test_the_other_tasks_of_the_paper_train_it_too(tmp_path: Path, kind: str, objective: str, write):
    data = write(tmp_path / "rows.parquet")
    overrides = (f"train.data={data}", f"train.objective={objective}", "train.max_steps=6")
    rank = rank_for(kind, tmp_path, "run", *overrides)
    train(rank)
    result = rank.run.result()
    assert result.metrics["end_loss"] < result.metrics["start_loss"]
    assert load_encoder(EncoderSettings(path=rank.run.encoder), EncodeSettings()).dim == 16


@KINDS
def test_the_setting_does_not_rename_trainings_without_it(tmp_path: Path, kind: str):
    run = rank_for(kind, tmp_path).run
    assert run.definition["train"][kind]["width"] == 16
    data = (f"train.data={tmp_path / 'conversations.parquet'}", f"train.root={tmp_path}")
    assert kind not in open_training(load_settings(Job, None, data))[1].definition["train"]


@KINDS
@pytest.mark.usefixtures("cluster")
def test_nights_store_and_search_the_vectors_of_the_product(tmp_path: Path, kind: str):
    rank = rank_for(kind, tmp_path)
    train(rank)
    product = load_encoder(EncoderSettings(path=rank.run.encoder), EncodeSettings())
    family, pooling = {"dan": ("dan", "mean"), "transformer": ("bert", "sqrt_len")}[kind]
    assert (product.folder.family, product.folder.pooling, product.dim) == (family, (pooling,), 16)
    assert np.array_equal(*product.encode(["A dog", "a dog"]))
    arguments = (
        *job_arguments(tmp_path, Path(rank.run.encoder)),
        "gates.recall_at_10=",
        "gates.unknown_tokens=",
    )
    for rows in (100, 120):
        write_corpus(tmp_path / "corpus", rows)
        nightly(load_settings(Job, None, arguments), Stages())
        release = open_release(tmp_path / "releases")
        assert (len(release), release.space_id) == (rows, product.space_id)
    text = sentences(120)[110]
    np.testing.assert_allclose(release.encode([text]), product.encode([text]), atol=1e-5)
    assert release.search(text, k=3)["text"][0].as_py() == text


@pytest.mark.slow
@KINDS
@pytest.mark.skipif(
    "MANTA_EVAL_DATA" not in os.environ, reason="MANTA_EVAL_DATA names the folder of evaluation data"
)
def test_it_learns_on_real_text(tmp_path: Path, kind: str):
    """Two captions of an image for an input and its response: the loss falls, STS-B exceeds its start."""
    data = Path(os.environ["MANTA_EVAL_DATA"])
    captions = pq.read_table(data / "captions" / "flickr30k_captions.parquet").slice(0, 60_000)
    images, texts = captions["image_id"].to_numpy(), captions["text"].to_pylist()
    first = np.flatnonzero(images[1:] == images[:-1])[::2]  # each caption is in one pair at most
    table = {"anchor": [texts[row] for row in first], "positive": [texts[row + 1] for row in first]}
    pq.write_table(pa.table(table), tmp_path / "captions.parquet")
    rank = rank_for(
        kind,
        tmp_path,
        "real",
        f"train.data={tmp_path / 'captions.parquet'}",
        *REAL[kind],
        "train.checkpoint={steps: 400, minutes: null}",
        f"train.dev={{uri: {data / 'sts' / 'STSB-dev.parquet'}, steps: 100}}",
    )
    train(rank)
    curve, score = losses(tmp_path / "trainings" / "real"), rank.run.result().metrics["dev"]
    start = rank.dev.score(TrainedModel(load_trainable(open_folder(rank.encoder))))
    assert np.mean(curve[-20:]) < 0.7 * np.mean(curve[:20])
    assert score > start + {"dan": 8, "transformer": 2}[kind]
