"""SDAE from its config to nights: a new LSTM is trained to restore texts, resumed, stored and searched."""

import os
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from pipeline.flows.train.rank import TrainRank
from pipeline.models.folder.folder import open_folder
from pipeline.models.folder.word_vectors import TABLE, read_words
from pipeline.settings import EncoderSettings
from tests.flows.conftest import sentences
from tests.flows.train.training import (
    assert_nights_store_and_search,
    assert_resumes_to_the_same_bits,
    losses,
    rank_of_config,
    train,
    weights,
    word_entropy,
    write_sentences,
)

CONFIG = Path(__file__).parents[3] / "jobs/configs/train/sdae.yaml"


@pytest.fixture(autouse=True)
def _own_cache(cache: Path) -> None:
    """New encoders are built in a cache of the test's own."""


def rank_for(folder: Path, name: str = "run", *overrides: str) -> TrainRank:
    """Return the training of the config, made small: 15 steps over 240 sentences."""
    small = (
        f"train.data={write_sentences(folder / 'sentences.parquet', 240)}",
        "train.recurrent.width=12",
        "train.recurrent.word_dim=8",
        "train.optimizer.learning_rate=0.02",
    )
    return rank_of_config(CONFIG, folder, name, *small, *overrides)


def test_a_stopped_training_resumes_to_the_same_bits_and_learns(tmp_path: Path):
    whole, parts = rank_for(tmp_path), rank_for(tmp_path, "parts")
    assert whole.plan.steps == 15
    assert_resumes_to_the_same_bits(whole, parts, 6)
    result = whole.run.result()
    assert result.metrics["end_loss"] < 0.95 * result.metrics["start_loss"]


def test_given_word_vectors_are_read_and_stay_as_they_are(tmp_path: Path):
    """The paper calls this model SDAE+embs."""
    words = sorted({word for text in sentences(240) for word in text.lower().rstrip(".").split()})
    vectors = np.random.default_rng(0).normal(size=(len(words), 5)).astype(np.float32)
    lines = (f"{word} {' '.join(map(str, row))}" for word, row in zip(words, vectors.tolist(), strict=True))
    (tmp_path / "vectors.txt").write_text("\n".join(lines))
    rank = rank_for(tmp_path, "embs", f"train.recurrent.words={tmp_path / 'vectors.txt'}")
    train(rank)
    folder = Path(rank.run.encoder)
    rows = {word: row for row, word in enumerate(read_words(folder))}
    np.testing.assert_array_equal(weights(folder)[TABLE][[rows[word] for word in words]], vectors)
    metrics = rank.run.result().metrics
    assert metrics["end_loss"] < 0.95 * metrics["start_loss"]


@pytest.mark.usefixtures("cluster")
def test_nights_store_and_search_the_vectors_of_the_trained_encoder(tmp_path: Path):
    rank = rank_for(tmp_path)
    train(rank)
    folder = open_folder(EncoderSettings(path=rank.run.encoder))
    assert (folder.family, folder.pooling, folder.dim, folder.lower) == ("recurrent", ("last",), 12, True)
    assert_nights_store_and_search(tmp_path, rank, tolerance=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(
    "MANTA_EVAL_DATA" not in os.environ, reason="MANTA_EVAL_DATA names the folder of evaluation data"
)
def test_captions_are_restored_better_than_by_the_frequencies_of_their_words(tmp_path: Path):
    """No caption is trained on twice, so every step measures the loss on captions that it has not seen."""
    data = Path(os.environ["MANTA_EVAL_DATA"])
    captions = pq.read_table(data / "captions/flickr30k_captions.parquet", columns=["text"]).slice(0, 20_000)
    pq.write_table(captions, tmp_path / "captions.parquet")
    rank = rank_for(
        tmp_path,
        "real",
        f"train.data={tmp_path / 'captions.parquet'}",
        "train.recurrent={cell: lstm, width: 64, directions: 1, word_dim: 32, vocabulary: 1000}",
        "train.order.batch_rows=64",
        "train.optimizer.learning_rate=0.01",
        "train.max_length=30",
        "train.max_steps=240",
        "train.checkpoint={steps: 120, minutes: null}",
    )
    train(rank)
    texts = captions["text"].to_pylist()
    tokenizer = open_folder(EncoderSettings(path=rank.run.encoder)).tokenizer()
    entropy = word_entropy(tokenizer, texts, texts) / len(texts)
    curve = losses(tmp_path / "trainings/real")
    assert entropy < curve[0] < 1.1 * entropy  # decoders start from frequencies by rank
    assert np.mean(curve[-20:]) < 0.8 * entropy
