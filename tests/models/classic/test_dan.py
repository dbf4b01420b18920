"""A deep averaging network averages words and bigrams as in the paper, and is trained, saved and used like
other encoders.
"""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.config import load_settings
from pipeline.errors import ConfigError, ModelError
from pipeline.models.classic.dan import Grams, buckets_of, grams_of, write_dan_folder
from pipeline.models.classic.new_vocabulary import count_words
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.word_vectors import TABLE
from pipeline.models.trainable.encoder import TrainableEncoder, load_trainable
from pipeline.models.trainable.saving import save_folder
from pipeline.settings import Job
from pipeline.settings.weights import DanSettings
from tests.models.classic.recurrents import word_counts
from tests.models.folder.wordfiles import minilm_table, write_words
from tests.models.folders import LONG, TEXTS, edit_json, encoder_at, folder_at
from tests.models.trainable.new_encoders import (
    assert_bits_do_not_depend_on_the_batch,
    assert_given_words_are_not_trained,
    assert_saved_as_trained,
)
from tests.models.trainable.padded import many

SMALL = DanSettings(width=16, layers=2, word_dim=12, buckets=64)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> EncoderFolder:
    path = tmp_path_factory.mktemp("dan") / "new"
    write_dan_folder(SMALL, word_counts(), path, seed=1)
    return folder_at(path)


def by_equations(encoder: TrainableEncoder, ids: list[int]) -> torch.Tensor:
    """Compute the vector of one text, whose ids include a start and an end token, in float64."""
    inner = ids[1:-1] or ids  # an empty text has only these two tokens
    pairs = [buckets_of(np.array([a]), np.array([b]), 64)[0] for a, b in pairwise(inner)]
    backbone = encoder.backbone
    grams = [*backbone.word_table[inner].double(), *backbone.bigrams.weight[pairs].double()]
    x = torch.stack(grams).sum(0) / (2 * len(inner) - 1)
    for layer in encoder.tail:
        x = torch.tanh(layer.linear.weight.double() @ x + layer.linear.bias.double())
    return x


def test_the_mean_of_words_and_bigrams_matches_a_hand_computation(tmp_path: Path):
    """Three words and two bigrams: the mean of their five vectors."""
    settings = DanSettings(width=3, word_dim=2, buckets=1_000)
    write_dan_folder(settings, count_words(["red green blue"]), tmp_path / "new", seed=0)
    encoder = load_trainable(folder_at(tmp_path / "new"))
    tokens, backbone = encoder.folder.tokenizer()(["Red green blue"]), encoder.backbone
    _, red, green, blue, _ = tokens.ids
    with torch.no_grad():
        backbone.word_table[[red, green, blue]] = torch.tensor([[1.0, 0], [0, 1], [2, 2]])
        pairs = buckets_of(np.array([red, green]), np.array([green, blue]), 1_000)
        backbone.bigrams.weight[pairs] = torch.tensor([[1.0, 1], [-1, 3]])
    np.testing.assert_allclose(encoder.pool_states(tokens).detach(), [[0.6, 1.4]], atol=1e-6)


def test_vectors_equal_the_equations(folder: EncoderFolder):
    encoder, texts = load_trainable(folder).eval(), [*TEXTS, LONG, "two", "", "two two two"]
    tokens = folder.tokenizer()(texts)
    ids = [part.tolist() for part in np.split(tokens.ids, tokens.offsets[1:-1])]
    expected = torch.stack([by_equations(encoder, each) for each in ids]).detach()
    assert expected.shape == (len(texts), 16) == (len(texts), folder.dim)
    assert expected.std(dim=0).max() > 1e-3
    np.testing.assert_allclose(encoder(tokens).detach(), expected, atol=1e-6)
    np.testing.assert_allclose(encoder_at(folder.path).encode(texts), expected, atol=1e-6)
    np.testing.assert_allclose(encoder_at(folder.path).encode(texts, query=True), expected, atol=1e-6)


def test_vectors_depend_on_the_order_of_words(folder: EncoderFolder):
    one, other = encoder_at(folder.path).encode(["a dog bites a man", "a man bites a dog"])
    assert np.abs(one - other).max() > 1e-4


def test_a_prompt_that_is_not_pooled_has_no_bigram_with_the_text(folder: EncoderFolder):
    tokens = folder.tokenizer()(["a dog bites a man", "a"])
    found = grams_of(tokens, 64, skip=3)  # the start token, "a" and "dog"
    expected = grams_of(folder.tokenizer()(["bites a man", "a"]), 64)
    for name in Grams._fields:
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)


def test_pairs_are_spread_evenly_over_buckets_that_are_the_same_on_every_machine():
    first, second = (ids.ravel() for ids in np.meshgrid(np.arange(300), np.arange(300)))
    counts = np.bincount(buckets_of(first, second, 1_000), minlength=1_000)
    # a Poisson distribution with a mean of 90 pairs per bucket has a variance of 90
    assert 0.8 * 90 < counts.var() < 1.2 * 90
    assert buckets_of(np.array([1, 2]), np.array([2, 1]), 2**20).tolist() == [480974, 978023]


def test_the_bits_of_a_text_do_not_depend_on_its_batch(folder: EncoderFolder):
    encoder = assert_bits_do_not_depend_on_the_batch(folder)
    assert encoder.counters.padding == 0


def test_every_weight_has_a_gradient(folder: EncoderFolder):
    encoder = load_trainable(folder, dropout=0.3)
    encoder(folder.tokenizer()(many(150))).square().sum().backward()
    names = {name for name, _ in encoder.named_parameters()}
    assert names > {f"backbone.{TABLE}", "backbone.bigrams.weight"}
    assert {name for name, parameter in encoder.named_parameters() if parameter.grad.any()} == names


def test_dropout_is_active_in_training_alone(folder: EncoderFolder):
    encoder, tokens = load_trainable(folder, dropout=0.3), folder.tokenizer()(2 * ["two dogs run"])
    assert encoder.backbone.has_dropout
    assert not torch.equal(*encoder(tokens))
    assert torch.equal(*encoder.eval()(tokens))
    assert not load_trainable(folder).backbone.has_dropout
    assert torch.equal(*load_trainable(folder)(tokens)), "the folder sets no dropout"


def test_the_saved_encoder_equals_the_trained_one_and_sentence_transformers_refuses_it(
    folder: EncoderFolder, tmp_path: Path
):
    assert (folder.pooling, folder.dim) == (("mean",), 16)
    assert_saved_as_trained(folder, tmp_path, "manta-dan")


@pytest.mark.usefixtures("cache")
def test_given_word_vectors_are_not_trained(tmp_path: Path):
    words = write_words(tmp_path / "words.txt", *minilm_table())
    settings = DanSettings(width=5, buckets=64, words=str(words), vocabulary=200)
    write_dan_folder(settings, word_counts(), tmp_path / "new", seed=0)
    assert_given_words_are_not_trained(folder_at(tmp_path / "new"))


def test_unsupported_features_are_refused(folder: EncoderFolder, tmp_path: Path):
    encoder, tokens = load_trainable(folder), folder.tokenizer()(["two dogs"])
    with pytest.raises(ModelError, match="an encoder with layers"):
        encoder(tokens, positions=np.arange(4))
    with pytest.raises(ModelError, match="the only pooling of a deep averaging network"):
        folder_at(folder.path, pooling="max")
    with pytest.raises(ModelError, match="a deep averaging network, which has vectors of words and of pairs"):
        encoder_at(folder.path).hidden_states()
    saved = save_folder(encoder, folder, tmp_path / "saved")
    edit_json(saved.path / "config.json", bigram_buckets=63)
    with pytest.raises(ModelError, match="belong together"):
        load_trainable(folder_at(saved.path))
    with pytest.raises(ConfigError, match=r"dan\.width is 8, and word_table\.dim is 9"):
        load_settings(Job, None, ("train.dan.width=8", "train.word_table.dim=9"))


def test_equal_seeds_give_equal_weights(folder: EncoderFolder, tmp_path: Path):
    for name, seed in (("same", 1), ("other", 2)):
        write_dan_folder(SMALL, word_counts(), tmp_path / name, seed=seed)
    same, other = (folder_at(tmp_path / name) for name in ("same", "other"))
    assert same.space_id == folder.space_id != other.space_id
