"""Trainings of new recurrent and convolutional encoders, and the cache of these encoders."""

from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from pipeline.config import load_settings
from pipeline.errors import ConfigError
from pipeline.models.folder.folder import open_folder
from pipeline.models.folder.word_vectors import END, START, UNKNOWN
from pipeline.models.inference.encoder import load_encoder
from pipeline.models.trainable.encoder import load_trainable
from pipeline.models.trainable.saving import save_joined
from pipeline.objectives.build import build_objective, data_requirements
from pipeline.settings import EncoderSettings, EncodeSettings, Job
from pipeline.text.rows.batches import RankSlice
from pipeline.text.rows.neighbours import NeighbourOrder
from pipeline.text.rows.order import ShuffledOrder
from pipeline.text.rows.training_rows import open_training_rows
from pipeline.train.batches import rank_batches
from pipeline.train.initial_state import starting_encoder
from pipeline.train.loop import Training, fit
from tests.models.folder.wordfiles import minilm_table, write_words
from tests.train.topics import TOPICS, write_books, write_nli

CONFIGS = Path(__file__).parents[2] / "jobs/configs/train"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    torch.set_num_threads(1)
    monkeypatch.setenv("MANTA_CACHE", str(tmp_path / "cache"))


def configured(name: str, *overrides: str) -> Job:
    """Load a published config with overrides."""
    return load_settings(Job, CONFIGS / name, overrides)


def train(job: Job, steps: int) -> tuple[Training, list[float]]:
    """Return the training after `steps` steps, and the loss of each step."""
    settings = job.train
    folder = open_folder(starting_encoder(settings, job.encoder))
    columns, optional, order = data_requirements(settings)
    rows = open_training_rows(settings.data[0], columns, optional)
    torch.manual_seed(settings.seed)
    objective = build_objective(
        settings, load_trainable(folder, dropout=settings.dropout, fresh=settings.fresh)
    )
    ordered = (NeighbourOrder if order == "contiguous" else ShuffledOrder)(rows, settings.order)
    training = Training(objective, settings, steps=steps, steps_per_epoch=ordered.steps_per_epoch)
    stream = rank_batches(ordered, folder.tokenizer(), start=0, rank_slice=RankSlice(0, 1))
    return training, [float(step.loss.total) for step in islice(fit(training, stream, until=steps), steps)]


def test_two_new_grus_learn_to_find_neighbours(tmp_path):
    data = write_books(tmp_path / "books.parquet")
    small = (
        "train.recurrent.width=16",
        "train.recurrent.word_dim=12",
        "train.order.batch_rows=12",
        "train.optimizer.learning_rate=0.02",
    )
    training, losses = train(configured("quickthoughts-gru.yaml", f"train.data={data}", *small), 40)
    assert losses[0] > 1.9  # near log 11 = 2.4, the loss of equal scores for eleven candidates
    assert np.mean(losses[-5:]) < 0.7 * losses[0]
    model = training.objective.trained_model()
    assert (model.encoder.dim, model.dim) == (32, 64)
    saved = save_joined((model.encoder, model.twin), tmp_path / "saved")
    texts = ["a dog runs", "music", ""]
    training.objective.eval()
    expected = model(saved.tokenizer()(texts)).detach()
    found = load_encoder(EncoderSettings(path=str(saved.path)), EncodeSettings()).encode(texts)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_new_bilstm_with_max_pooling_learns_inference(tmp_path):
    words = write_words(tmp_path / "words.txt", *minilm_table())
    job = configured(
        "infersent.yaml",
        f"train.data={write_nli(tmp_path / 'nli.parquet')}",
        f"train.recurrent.words={words}",
        "train.recurrent.width=16",
        "train.recurrent.vocabulary=null",
        "train.order.batch_rows=16",
        "train.optimizer.learning_rate=1.0",
    )
    training, losses = train(job, 36)
    assert np.mean(losses[-6:]) < 0.8 * np.mean(losses[:3])
    assert training.objective.trained_model().encoder.folder.pooling == ("max",)


def test_new_convolutions_learn_inference(tmp_path):
    words = write_words(tmp_path / "words.txt", *minilm_table())
    job = configured(
        "infersent-convnet.yaml",
        f"train.data={write_nli(tmp_path / 'nli.parquet')}",
        f"train.convolutional.words={words}",
        "train.convolutional.width=16",
        "train.convolutional.vocabulary=null",
        "train.order.batch_rows=16",
        "train.optimizer={name: adam, learning_rate: 0.005}",
    )
    training, losses = train(job, 36)
    assert np.mean(losses[-6:]) < 0.8 * np.mean(losses[:3])
    encoder = training.objective.trained_model().encoder
    assert (encoder.folder.pooling, encoder.dim) == (("max",), 64)
    assert starting_encoder(job.train, job.encoder).path == str(encoder.folder.path)


def test_a_new_encoder_is_built_once_for_equal_rows_and_settings(tmp_path, capfd):
    data = write_books(tmp_path / "books.parquet")
    job = configured(
        "quickthoughts-gru.yaml",
        f"train.data={data}",
        "train.recurrent.width=4",
        "train.recurrent.word_dim=4",
        "train.recurrent.vocabulary=10",
    )
    first, again = (starting_encoder(job.train, job.encoder) for _ in range(2))
    assert first == again
    assert capfd.readouterr().err.count("counting the words") == 1
    folder = open_folder(first)
    words = (folder.path / "vocab.txt").read_text().split("\n")
    assert words[:3] == [UNKNOWN, START, END]
    assert set(words[3:]) < {word for topic in TOPICS for word in topic.split()}
    assert (len(words), folder.max_length, folder.lower, folder.dim) == (12, 256, True, 8)
    of_other_seed = starting_encoder(job.train.model_copy(update={"seed": 1}), job.encoder)
    assert open_folder(of_other_seed).space_id != folder.space_id
    pq.write_table(pq.read_table(data).slice(0, 48), data)
    of_other_rows = starting_encoder(job.train, job.encoder)
    assert of_other_rows.path not in (first.path, of_other_seed.path)


def test_a_missing_file_of_word_vectors_is_refused_before_building(tmp_path):
    job = configured("infersent.yaml", f"train.data={write_nli(tmp_path / 'nli.parquet')}")
    with pytest.raises(ConfigError, match=r"no file glove.840B.300d.txt"):
        starting_encoder(job.train, job.encoder)


def test_an_encoder_instead_of_word_vectors_is_refused(tmp_path):
    books = write_books(tmp_path / "books.parquet")
    recurrent = configured("quickthoughts-gru.yaml", f"train.data={books}", "train.recurrent.width=2")
    path = starting_encoder(recurrent.train, recurrent.encoder).path
    nli = write_nli(tmp_path / "nli.parquet")
    job = configured("infersent.yaml", f"train.data={nli}", f"train.recurrent.words={path}")
    with pytest.raises(ConfigError, match="the manta-recurrent encoder"):
        starting_encoder(job.train, job.encoder)


def test_without_a_new_encoder_the_configured_one_is_used():
    settings = EncoderSettings(path="somewhere")
    assert starting_encoder(Job().train, settings) == settings
