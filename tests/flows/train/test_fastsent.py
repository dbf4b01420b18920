"""FastSent from its config to a night: new word vectors are trained, resumed, stored and searched."""

import os
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from pipeline.config import load_settings
from pipeline.errors import ConfigError
from pipeline.flows.night.nightly import nightly
from pipeline.flows.train.rank import TrainRank
from pipeline.flows.train.train import open_training
from pipeline.index.search import open_release
from pipeline.log import Stages
from pipeline.models.folder.folder import open_folder
from pipeline.models.folder.frequencies import FREQUENCIES, read_frequencies
from pipeline.models.folder.word_vectors import read_words
from pipeline.models.inference.encoder import load_encoder
from pipeline.settings import EncoderSettings, EncodeSettings, Job
from tests.flows.conftest import job_arguments, sentences, write_corpus
from tests.flows.train.test_rank import Stop, train
from tests.flows.train.training import losses, unstarted, write_books, write_running_text

CONFIG = Path(__file__).parents[3] / "jobs/configs/train/fastsent.yaml"


@pytest.fixture(autouse=True)
def _own_cache(cache: Path) -> None:
    """New word vectors are built in a cache of the test's own."""


def rank_for(folder: Path, name: str = "run", *overrides: str) -> TrainRank:
    """Return the training of the config, made small: 14 steps over 228 triples."""
    small = (
        f"train.data={write_books(folder / 'books.parquet')}",
        "train.word_table.dim=12",
    )
    return unstarted(CONFIG, folder, name, *small, *overrides)


def test_a_stopped_training_resumes_to_the_same_bits_with_the_same_negatives(tmp_path: Path):
    whole, parts = rank_for(tmp_path), rank_for(tmp_path, "parts")
    assert whole.plan.steps == 14
    train(whole)
    with pytest.raises(Stop):
        train(parts, 6)
    train(parts)
    spaces = [open_folder(EncoderSettings(path=rank.run.encoder)).space_id for rank in (whole, parts)]
    assert spaces[0] == spaces[1] != open_folder(whole.encoder).space_id
    result = whole.run.result()
    assert result.metrics["end_loss"] < result.metrics["start_loss"]
    assert losses(tmp_path / "trainings" / "run")[-1] < losses(tmp_path / "trainings" / "run")[0]


@pytest.mark.usefixtures("cluster")
def test_the_product_is_word_vectors_whose_sums_a_night_stores_and_searches(tmp_path: Path):
    rank = rank_for(tmp_path)
    train(rank)
    folder = open_folder(EncoderSettings(path=rank.run.encoder))
    assert (folder.family, folder.pooling, folder.dim, folder.lower) == ("words", ("sum",), 12, True)
    product = load_encoder(EncoderSettings(path=rank.run.encoder), EncodeSettings())
    text = "the Dog reads"
    words = dict(zip(read_words(folder.path), product._model._table.numpy(), strict=True))
    np.testing.assert_allclose(
        product.encode(text), sum(words[word] for word in ("the", "dog", "reads")), atol=1e-6
    )
    weighted = load_encoder(EncoderSettings(path=rank.run.encoder, sif=0.001), EncodeSettings())
    assert not np.allclose(weighted.encode(text), product.encode(text)), "its own counts weight the words"
    write_corpus(tmp_path / "corpus", 120)
    arguments = (
        *job_arguments(tmp_path, Path(rank.run.encoder)),
        "gates.recall_at_10=",
        "gates.unknown_tokens=",
    )
    nightly(load_settings(Job, None, arguments), Stages())
    release = open_release(tmp_path / "releases")
    assert (len(release), release.space_id) == (120, product.space_id)
    np.testing.assert_array_equal(release.encode([text]), product.encode([text]))
    first = sentences(120)[7]
    assert release.search(first, k=3)["text"][0].as_py() == first


@pytest.mark.slow
@pytest.mark.skipif(
    "MANTA_EVAL_DATA" not in os.environ, reason="MANTA_EVAL_DATA names the folder of evaluation data"
)
def test_real_text_is_predicted_better_than_by_the_frequencies_of_its_words(tmp_path: Path):
    """On rows that were not trained on; a model that ignores its input has the entropy of the words."""
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
    surprise = -np.log(counts / counts.sum())
    (batch,) = islice(rank.plan.order.batches(rank.plan.steps), 1)
    texts = [text for role in ("previous", "text", "next") for text in batch.table[role].to_pylist()]
    entropy = surprise[folder.tokenizer()(texts).ids].sum() / len(batch.table)
    found = rank.run.result().metrics
    assert (found["same_rows"], found["start_loss"] > 1.3 * entropy) == (256, True)
    assert found["end_loss"] < entropy


def test_two_new_encoders_are_refused():
    with pytest.raises(ConfigError, match=r"recurrent\.cell is gru, and word_table\.dim is 100"):
        load_settings(Job, CONFIG, ("train.recurrent.cell=gru",))


def test_settings_that_are_newer_than_a_training_do_not_rename_it(tmp_path: Path):
    run = rank_for(tmp_path, "new").run
    assert run.definition["train"]["word_table"]["dim"] == 12
    old = open_training(
        load_settings(Job, None, (f"train.data={tmp_path / 'books.parquet'}", f"train.root={tmp_path}"))
    )[1]
    assert not {"word_table", "convolutional"} & set(old.definition["train"])
    assert "final" not in old.definition["train"]["schedule"]
