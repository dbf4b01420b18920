"""The NMT encoder from its config to nights: a new GRU is trained, resumed, stored and searched."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.flows.train.rank import TrainRank
from pipeline.models.folder.folder import open_folder
from pipeline.models.folder.word_vectors import read_words
from pipeline.settings import EncoderSettings
from tests.flows.conftest import sentences
from tests.flows.train.training import (
    assert_nights_store_and_search,
    assert_resumes_to_the_same_bits,
    losses,
    rank_of_config,
    train,
    word_entropy,
)

CONFIG = Path(__file__).parents[3] / "jobs/configs/train/nmt.yaml"


@pytest.fixture(autouse=True)
def _own_cache(cache: Path) -> None:
    """New encoders are built in a cache of the test's own."""


def write_translations(file: Path) -> Path:
    """Write 240 made-up sentences. A translation has the words in reverse order, with the ending "en"."""
    texts = sentences(240)
    translations = [" ".join(f"{word}en" for word in reversed(text.rstrip(".").split())) for text in texts]
    pq.write_table(pa.table({"english": texts, "other": translations}), file)
    return file


def rank_for(folder: Path, name: str = "run", *overrides: str) -> TrainRank:
    """Return the training of the config, made small: 15 steps over 240 pairs."""
    file = write_translations(folder / "pairs.parquet")
    small = (
        f"train.data={{uri: {file}, columns: {{text: english, translation: other}}}}",
        "train.recurrent.width=12",
        "train.recurrent.word_dim=8",
        "train.order.batch_rows=16",
        "train.optimizer.learning_rate=0.02",
    )
    return rank_of_config(CONFIG, folder, name, *small, *overrides)


def test_a_stopped_training_resumes_to_the_same_bits_and_learns(tmp_path: Path):
    whole, parts = rank_for(tmp_path), rank_for(tmp_path, "parts")
    assert whole.plan.steps == 15
    assert_resumes_to_the_same_bits(whole, parts, 6)
    result = whole.run.result()
    assert result.metrics["end_loss"] < 0.95 * result.metrics["start_loss"]


@pytest.mark.usefixtures("cluster")
def test_nights_store_and_search_the_vectors_of_the_trained_encoder(tmp_path: Path):
    rank = rank_for(tmp_path)
    train(rank)
    folder = open_folder(EncoderSettings(path=rank.run.encoder))
    assert (folder.family, folder.pooling, folder.dim) == ("recurrent", ("last",), 12)
    assert {"dog", "dogen"} <= set(read_words(Path(rank.run.encoder)))  # both languages share a vocabulary
    assert_nights_store_and_search(tmp_path, rank, tolerance=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(
    "MANTA_EVAL_DATA" not in os.environ, reason="MANTA_EVAL_DATA names the folder of evaluation data"
)
def test_captions_are_translated_better_than_by_the_frequencies_of_words(tmp_path: Path):
    """No caption is trained on twice, so every step measures the loss on captions that it has not seen."""
    data = Path(os.environ["MANTA_EVAL_DATA"])
    pairs = pq.read_table(data / "parallel/multi30k.en-de.parquet", columns=["src", "tgt"])
    pq.write_table(pairs, tmp_path / "real.parquet")
    rank = rank_for(
        tmp_path,
        "real",
        f"train.data={{uri: {tmp_path / 'real.parquet'}, columns: {{text: src, translation: tgt}}}}",
        "train.recurrent={cell: gru, width: 64, directions: 1, word_dim: 32, vocabulary: 2000}",
        "train.order.batch_rows=64",
        "train.optimizer.learning_rate=0.01",
        "train.max_length=30",
        "train.max_steps=300",
        "train.checkpoint={steps: 150, minutes: null}",
    )
    train(rank)
    texts = pairs["tgt"].to_pylist()
    tokenizer = open_folder(EncoderSettings(path=rank.run.encoder)).tokenizer()
    entropy = word_entropy(tokenizer, texts, texts) / len(texts)
    curve = losses(tmp_path / "trainings/real")
    # decoders start from frequencies by rank, of the words of both languages
    assert entropy < curve[0] < 1.2 * entropy
    assert np.mean(curve[-20:]) < 0.9 * entropy
