"""Trainable word vectors give the vectors of inference, learn, and are saved as word vectors."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.errors import ModelError
from pipeline.models.folder.folder import open_folder
from pipeline.models.folder.vectorfile import read_vectors
from pipeline.models.inference.encoder import load_encoder
from pipeline.models.trainable.encoder import TrainableEncoder, load_trainable
from pipeline.models.trainable.saving import save_folder
from pipeline.objectives.simcse import SimCSE
from pipeline.settings import EncoderSettings, EncodeSettings
from pipeline.train.gradcache import loss_and_backward
from tests.models.folder.wordfiles import write_counts, write_words
from tests.models.poolings import OF_WORDS
from tests.objectives.tiny import batch_of

WORDS = ("dog", "cat", "runs", "sleeps", "the")
TEXTS = ["the dog runs", "nothing known here", "cat", "the the cat sleeps", ""]


@pytest.fixture
def words(tmp_path: Path, cache: Path) -> Path:
    """A file of word vectors of 3 dimensions."""
    torch.set_num_threads(1)
    vectors = np.random.default_rng(0).normal(size=(len(WORDS), 3)).astype(np.float32)
    return write_words(tmp_path / "words.txt", WORDS, vectors)


def trainable(path: Path, **overrides: object) -> TrainableEncoder:
    return load_trainable(open_folder(EncoderSettings(path=str(path), **overrides)))


@pytest.mark.parametrize("normalize", [None, True])
@pytest.mark.parametrize("pooling", [*OF_WORDS, "mean+max"])
def test_vectors_are_those_of_inference_and_zero_without_a_known_word(words, pooling, normalize):
    encoder = trainable(words, pooling=pooling, normalize=normalize)
    found = encoder(encoder.folder.tokenizer()(TEXTS))
    expected = load_encoder(
        EncoderSettings(path=str(words), pooling=pooling, normalize=normalize), EncodeSettings()
    ).encode(TEXTS)
    np.testing.assert_allclose(found.detach(), expected, atol=1e-6)
    assert not found[[1, 4]].any()
    found.sum().backward()
    assert torch.isfinite(encoder.backbone.word_table.grad).all()


def test_a_batch_without_a_known_word_has_zero_vectors(words):
    encoder = trainable(words, pooling="sum")
    assert not encoder(encoder.folder.tokenizer()(["unheard", ""])).any()


def test_the_gradient_of_a_sum_is_the_number_of_occurrences_of_each_word(words):
    encoder = trainable(words, pooling="sum")
    encoder(encoder.folder.tokenizer()(TEXTS)).sum().backward()
    assert encoder.backbone.word_table.grad[:, 0].tolist() == [1, 2, 1, 1, 3]


def test_trained_word_vectors_are_saved_as_word_vectors(words, tmp_path):
    encoder = trainable(words, pooling="sum")
    with torch.no_grad():
        encoder.backbone.word_table.mul_(2)
    saved = save_folder(encoder, encoder.folder, tmp_path / "saved")
    assert (saved.family, saved.pooling, saved.lower) == ("words", ("sum",), True)
    assert saved.space_id != encoder.folder.space_id
    before = load_encoder(EncoderSettings(path=str(words), pooling="sum"), EncodeSettings()).encode(TEXTS)
    after = load_encoder(EncoderSettings(path=str(saved.path)), EncodeSettings()).encode(TEXTS)
    np.testing.assert_allclose(after, 2 * before, atol=1e-6)


def test_dropout_and_contrastive_objectives_apply_to_word_vectors(words):
    folder = open_folder(EncoderSettings(path=str(words), pooling="mean"))
    objective = SimCSE(load_trainable(folder, dropout=0.3))
    batch = dataclasses.replace(
        batch_of({"text": ["the dog runs", "cat", "the cat sleeps"]}), tokenize=folder.tokenizer()
    )
    result = loss_and_backward(objective, batch)
    assert not torch.equal(*result.reps)
    assert objective.encoder.backbone.has_dropout
    assert not load_trainable(folder).backbone.has_dropout
    assert objective.encoder.backbone.word_table.grad.any()


@pytest.mark.usefixtures("cache")
def test_new_vectors_are_uniform_within_half_of_the_inverse_dimension(tmp_path):
    names = tuple(f"w{number}" for number in range(2_000))
    encoder = trainable(write_words(tmp_path / "many.txt", names, np.ones((2_000, 3), np.float32)))
    torch.manual_seed(0)
    drawn = np.sort(encoder.draw().backbone.word_table.detach().numpy().ravel())
    np.testing.assert_allclose(drawn, np.linspace(-0.5 / 3, 0.5 / 3, 6_000), atol=0.01)
    assert np.abs(drawn).max() <= 0.5 / 3


def test_positions_and_sif_weights_are_refused(words, tmp_path):
    encoder = trainable(words)
    tokens = encoder.folder.tokenizer()(TEXTS)
    with pytest.raises(ModelError, match="an encoder with layers"):
        encoder(tokens, positions=np.arange(len(tokens.ids)))
    counts = write_counts(tmp_path / "counts.parquet", {"dog": 2, "the": 9})
    with pytest.raises(ModelError, match="gives all words equal weights"):
        trainable(words, sif=0.001, frequencies=str(counts))


def test_saved_word_vectors_are_also_a_file_of_word2vec_with_the_same_bits(words, tmp_path: Path):
    encoder = trainable(words, pooling="sum")
    saved = save_folder(encoder, encoder.folder, tmp_path / "saved")
    parts = list(read_vectors(saved.path / "word2vec.txt", "word2vec.txt"))
    assert [word for known, _ in parts for word in known] == list(WORDS)
    found = np.concatenate([vectors for _, vectors in parts])
    np.testing.assert_array_equal(found, encoder.backbone.word_table.detach())
    assert "word2vec.txt" not in saved.files, "it is a copy for other programs, on which no vector depends"
