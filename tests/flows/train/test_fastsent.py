"""FastSent from its config to a night: new word vectors are trained, resumed, stored and searched."""

import os
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from pipeline.config import load_settings
from pipeline.errors import ConfigError
from pipeline.flows.train.rank import TrainRank
from pipeline.flows.train.train import open_training
from pipeline.models.folder.folder import open_folder
from pipeline.models.folder.frequencies import FREQUENCIES, read_frequencies
from pipeline.models.folder.word_vectors import read_words
from pipeline.models.inference.encoder import load_encoder
from pipeline.settings import EncoderSettings, EncodeSettings, Job
from tests.benchmarks.papers.rated_pairs import read_pairs
from tests.flows.train.training import (
    assert_nights_store_and_search,
    assert_resumes_to_the_same_bits,
    losses,
    rank_of_config,
    train,
    write_books,
    write_caption_documents,
    write_running_text,
)

CONFIG = Path(__file__).parents[3] / "jobs/configs/train/fastsent.yaml"


@pytest.fixture(autouse=True)
def _own_cache(cache: Path) -> None:
    """New word vectors are built in a cache of the test's own."""


def rank_for(folder: Path, name: str = "run", *overrides: str) -> TrainRank:
    """Return the training of the config, made small: 14 steps over 228 triples."""
    small = (
        f"train.data={write_books(folder / 'books.parquet')}",
        "train.word_table.dim=12",
        "train.order.batch_rows=16",
    )
    return rank_of_config(CONFIG, folder, name, *small, *overrides)


def test_a_stopped_training_resumes_to_the_same_bits_and_learns(tmp_path: Path):
    whole, parts = rank_for(tmp_path), rank_for(tmp_path, "parts")
    assert whole.plan.steps == 14
    assert_resumes_to_the_same_bits(whole, parts, 6)
    result = whole.run.result()
    assert result.metrics["end_loss"] < result.metrics["start_loss"]
    assert losses(tmp_path / "trainings" / "run")[-1] < losses(tmp_path / "trainings" / "run")[0]


@pytest.mark.usefixtures("cluster")
def test_the_encoder_sums_word_vectors_and_nights_store_and_search_the_sums(tmp_path: Path):
    rank = rank_for(tmp_path)
    train(rank)
    folder = open_folder(EncoderSettings(path=rank.run.encoder))
    assert (folder.family, folder.pooling, folder.dim, folder.lower) == ("words", ("sum",), 12, True)
    encoder = load_encoder(EncoderSettings(path=rank.run.encoder), EncodeSettings())
    vectors = dict(zip(read_words(folder.path), encoder._model._table.rows.numpy(), strict=True))
    expected = vectors["the"] + vectors["dog"] + vectors["reads"]
    np.testing.assert_allclose(encoder.encode("the Dog reads"), expected, atol=1e-6)
    assert_nights_store_and_search(tmp_path, rank, rows=(120,))


def test_the_words_can_be_weighted_by_the_counts_in_the_folder(tmp_path: Path):
    rank = rank_for(tmp_path, "run", "train.max_steps=1")
    train(rank)
    plain, weighted = (
        load_encoder(EncoderSettings(path=rank.run.encoder, sif=sif), EncodeSettings())
        for sif in (None, 0.001)
    )
    assert not np.allclose(weighted.encode("the Dog reads"), plain.encode("the Dog reads"))


@pytest.mark.slow
@pytest.mark.skipif(
    "MANTA_EVAL_DATA" not in os.environ, reason="MANTA_EVAL_DATA names the folder of evaluation data"
)
def test_real_text_is_predicted_better_than_by_the_frequencies_of_its_words(tmp_path: Path):
    """Measure on rows that were not trained on. A model that ignores its input has the entropy of words."""
    rank = rank_for(
        tmp_path,
        "real",
        f"train.data={write_running_text(tmp_path / 'real.parquet')}",
        "train.word_table={dim: 64, vocabulary: 3000}",
        "train.objective={name: fastsent, options: {autoencode: true}}",
        "train.order.batch_rows=256",
        "train.optimizer={name: adam, learning_rate: 0.01}",
        "train.max_steps=220",
    )
    train(rank)
    folder = open_folder(EncoderSettings(path=rank.run.encoder))
    counts = read_frequencies(folder.path / FREQUENCIES).counts
    information = -np.log(counts / counts.sum())
    (batch,) = islice(rank.plan.order.batches(rank.plan.steps), 1)
    texts = [text for role in ("previous", "text", "next") for text in batch.table[role].to_pylist()]
    entropy = information[folder.tokenizer()(texts).ids].sum() / len(batch.table)
    found = rank.run.result().metrics
    assert found["same_rows"] == 256
    assert found["start_loss"] > 1.3 * entropy
    assert found["end_loss"] < entropy


@pytest.mark.slow
@pytest.mark.skipif(
    "MANTA_EVAL_DATA" not in os.environ, reason="MANTA_EVAL_DATA names the folder of evaluation data"
)
def test_captions_of_one_picture_as_neighbours_bring_sts_above_the_start(tmp_path: Path):
    """Sums of random vectors, the start, compare the words that two sentences share; no score is trained on.

    Two of five scores on STS-B dev are of sentences about pictures.
    """
    rank = rank_for(
        tmp_path,
        "real",
        f"train.data={write_caption_documents(tmp_path / 'captions.parquet')}",
        "train.word_table={dim: 100, vocabulary: 10000}",
        "train.order.batch_rows=256",
        "train.max_steps=400",
        "train.epochs=2",
    )
    train(rank)
    measured = rank.run.result().metrics
    assert measured["end_loss"] < 0.8 * measured["start_loss"]
    dev = read_pairs(Path(os.environ["MANTA_EVAL_DATA"]) / "sts" / "STSB-dev.parquet")
    start, trained = (
        dev.score(load_encoder(EncoderSettings(path=path), EncodeSettings()).encode(dev.texts))
        for path in (rank.encoder.path, rank.run.encoder)
    )
    assert trained > start + 4


def test_two_new_encoders_are_refused():
    with pytest.raises(ConfigError, match=r"recurrent\.cell is gru, and word_table\.dim is 100"):
        load_settings(Job, CONFIG, ("train.recurrent.cell=gru",))


def test_definitions_of_trainings_without_new_word_vectors_do_not_mention_them(tmp_path: Path):
    """Trainings that were defined before these settings existed keep their names."""
    run = rank_for(tmp_path, "new").run
    assert run.definition["train"]["word_table"]["dim"] == 12
    data = (f"train.data={tmp_path / 'books.parquet'}", f"train.root={tmp_path}")
    _, other = open_training(load_settings(Job, None, data))
    assert not {"word_table", "convolutional"} & set(other.definition["train"])
    assert "final" not in other.definition["train"]["schedule"]
