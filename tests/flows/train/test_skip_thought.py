"""Skip-Thought from its config to nights: a new GRU is trained, resumed, stored, joined and searched."""

import os
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from pipeline.flows.train.rank import TrainRank
from pipeline.models.folder.folder import open_folder
from pipeline.models.folder.word_vectors import read_words
from pipeline.models.inference.encoder import Encoder, load_encoder
from pipeline.settings import EncoderSettings, EncodeSettings
from tests.flows.conftest import sentences
from tests.flows.train.training import (
    assert_nights_store_and_search,
    assert_resumes_to_the_same_bits,
    losses,
    rank_of_config,
    train,
    weights,
    word_entropy,
    write_books,
    write_running_text,
)

CONFIG = Path(__file__).parents[3] / "jobs/configs/train/skip-thought.yaml"


@pytest.fixture(autouse=True)
def _own_cache(cache: Path) -> None:
    """New encoders are built in a cache of the test's own."""


def rank_for(folder: Path, name: str = "run", *overrides: str) -> TrainRank:
    """Return the training of the config, made small: 14 steps over 228 triples."""
    small = (
        f"train.data={write_books(folder / 'books.parquet')}",
        "train.recurrent.width=12",
        "train.recurrent.word_dim=8",
        "train.order.batch_rows=16",
        "train.optimizer.learning_rate=0.02",
    )
    return rank_of_config(CONFIG, folder, name, *small, *overrides)


def encoder_at(path: str) -> Encoder:
    return load_encoder(EncoderSettings(path=path), EncodeSettings())


def test_a_stopped_training_resumes_to_the_same_bits_and_learns(tmp_path: Path):
    whole, parts = rank_for(tmp_path), rank_for(tmp_path, "parts")
    assert whole.plan.steps == 14
    assert_resumes_to_the_same_bits(whole, parts, 6)
    result = whole.run.result()
    assert result.metrics["end_loss"] < 0.95 * result.metrics["start_loss"]
    assert losses(tmp_path / "trainings" / "run")[-1] < losses(tmp_path / "trainings" / "run")[0]


def test_two_trainings_are_combined_side_by_side(tmp_path: Path):
    """The paper calls them uni-skip and bi-skip, and the combination combine-skip."""
    short = "train.max_steps=3"
    uni = rank_for(tmp_path, "uni", short)
    train(uni)
    bi = ("train.recurrent.directions=2", "train.recurrent.width=6")
    objective = f"{{name: skip_thought, options: {{beside: {uni.run.encoder}}}}}"
    both = rank_for(tmp_path, "both", short, *bi, f"train.objective={objective}")
    train(both)
    alone = rank_for(tmp_path, "bi", short, *bi)
    train(alone)
    folder, texts = open_folder(EncoderSettings(path=both.run.encoder)), sentences(9, seed=3)
    assert [part.pooling for part in folder.parts] == [("ends",), ("last",)]
    assert folder.dim == 24
    expected = [encoder_at(rank.run.encoder).encode(texts) for rank in (alone, uni)]
    np.testing.assert_array_equal(encoder_at(both.run.encoder).encode(texts), np.hstack(expected))


def test_the_vocabulary_of_the_trained_encoder_is_expanded(tmp_path: Path):
    """Words are added after the last step. All other weights equal those of a training without expansion."""
    short = "train.max_steps=3"
    words = ("dog", "man", "woman", "zebra")
    lines = [f"{word} {number} {number**2 % 5}" for number, word in enumerate(words, start=1)]
    (tmp_path / "vectors.txt").write_text("\n".join(lines))
    plain = rank_for(tmp_path, "plain", short)
    expanded = rank_for(tmp_path, "expanded", short, f"train.expand.words={tmp_path / 'vectors.txt'}")
    assert "expand" not in plain.run.definition["train"]
    for rank in (plain, expanded):
        train(rank)
    before, after = (Path(rank.run.encoder) for rank in (plain, expanded))
    assert read_words(after) == [*read_words(before), "zebra"]
    for name, tensor in weights(before).items():
        np.testing.assert_array_equal(weights(after)[name][: len(tensor)], tensor)
    texts = ["A zebra.", "A dog."]
    with_zebra, without = encoder_at(str(after)).encode(texts), encoder_at(str(before)).encode(texts)
    assert np.abs(with_zebra - without)[0].max() > 1e-3
    np.testing.assert_array_equal(with_zebra[1], without[1])


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
def test_real_text_is_predicted_better_than_by_the_frequencies_of_its_words(tmp_path: Path):
    """Measure on rows that were not trained on. Decoders that ignore their input have the words' entropy."""
    real = write_running_text(tmp_path / "real.parquet")
    rank = rank_for(
        tmp_path,
        "real",
        f"train.data={real}",
        "train.recurrent={cell: gru, width: 48, directions: 1, word_dim: 32, vocabulary: 2000}",
        "train.order.batch_rows=64",
        "train.optimizer.learning_rate=0.01",
        "train.max_length=30",
        "train.max_steps=240",
        "train.checkpoint={steps: 120, minutes: null}",
    )
    train(rank)
    tokenizer = open_folder(EncoderSettings(path=rank.run.encoder)).tokenizer()
    tables = [batch.table for batch in islice(rank.plan.order.batches(rank.plan.steps), 4)]
    texts = [text for table in tables for role in ("previous", "next") for text in table[role].to_pylist()]
    found = rank.run.result().metrics
    counted = pq.read_table(real)["text"].to_pylist()
    entropy = word_entropy(tokenizer, counted, texts) / found["same_rows"]
    assert found["same_rows"] == 256  # measured before the training and after it
    assert entropy < found["start_loss"] < 1.1 * entropy  # decoders start from frequencies by rank
    assert found["end_loss"] < 0.98 * entropy
