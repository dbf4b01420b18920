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
from pipeline.flows.train.rank import TrainRank
from pipeline.flows.train.train import open_training
from pipeline.models.folder.folder import open_folder
from pipeline.models.inference.encoder import load_encoder
from pipeline.models.trainable.encoder import load_trainable
from pipeline.objectives import TrainedModel
from pipeline.settings import EncoderSettings, EncodeSettings, Job
from tests.flows.conftest import sentences
from tests.flows.train.training import (
    assert_nights_store_and_search,
    assert_resumes_to_the_same_bits,
    losses,
    rank_of_config,
    train,
    write_books,
    write_caption_pairs,
)
from tests.train.topics import write_nli

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
    """Write inputs, and responses that have the same words in reverse order."""
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
    return rank_of_config(CONFIGS / f"use-{kind}.yaml", folder, name, *small, *overrides)


@KINDS
def test_a_stopped_training_resumes_to_the_same_bits_and_learns(tmp_path: Path, kind: str):
    whole, parts = rank_for(kind, tmp_path), rank_for(kind, tmp_path, "parts")
    assert whole.plan.steps == 12
    assert_resumes_to_the_same_bits(whole, parts, 6)
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
def test_definitions_of_trainings_without_a_new_encoder_do_not_mention_it(tmp_path: Path, kind: str):
    """Trainings that were defined before these settings existed keep their names."""
    run = rank_for(kind, tmp_path).run
    assert run.definition["train"][kind]["width"] == 16
    data = (f"train.data={tmp_path / 'conversations.parquet'}", f"train.root={tmp_path}")
    assert kind not in open_training(load_settings(Job, None, data))[1].definition["train"]


@KINDS
@pytest.mark.usefixtures("cluster")
def test_nights_store_and_search_the_vectors_of_the_trained_encoder(tmp_path: Path, kind: str):
    rank = rank_for(kind, tmp_path)
    train(rank)
    encoder = load_encoder(EncoderSettings(path=rank.run.encoder), EncodeSettings())
    family, pooling = {"dan": ("dan", "mean"), "transformer": ("bert", "sqrt_len")}[kind]
    assert (encoder.folder.family, encoder.folder.pooling, encoder.dim) == (family, (pooling,), 16)
    assert np.array_equal(*encoder.encode(["A dog", "a dog"]))
    assert_nights_store_and_search(tmp_path, rank, tolerance=1e-5)


@pytest.mark.slow
@KINDS
@pytest.mark.skipif(
    "MANTA_EVAL_DATA" not in os.environ, reason="MANTA_EVAL_DATA names the folder of evaluation data"
)
def test_it_learns_on_real_text(tmp_path: Path, kind: str):
    """Train on pairs of captions of an image. The score on STS-B exceeds that of the start, too."""
    sts = Path(os.environ["MANTA_EVAL_DATA"]) / "sts" / "STSB-dev.parquet"
    rank = rank_for(
        kind,
        tmp_path,
        "real",
        f"train.data={write_caption_pairs(tmp_path / 'captions.parquet')}",
        *REAL[kind],
        "train.checkpoint={steps: 400, minutes: null}",
        f"train.dev={{uri: {sts}, steps: 100}}",
    )
    train(rank)
    curve, score = losses(tmp_path / "trainings" / "real"), rank.run.result().metrics["dev"]
    start = rank.dev.score(TrainedModel(load_trainable(open_folder(rank.encoder))))
    assert np.mean(curve[-20:]) < 0.7 * np.mean(curve[:20])
    assert score > start + 8
