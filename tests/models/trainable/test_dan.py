"""A deep averaging network averages words and bigrams as the paper says, and is an encoder like others:
trained, saved, encoded with the same bits whatever its neighbours, refused by libraries that cannot load it.
"""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from pipeline.config import load_settings
from pipeline.errors import ConfigError, ModelError
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.folder import open_folder
from pipeline.models.folder.word_vectors import TABLE
from pipeline.models.inference.encoder import Encoder, load_encoder
from pipeline.models.trainable.dan import buckets_of, grams_of
from pipeline.models.trainable.encoder import TrainableEncoder, load_trainable
from pipeline.models.trainable.new_dan import write_dan_folder
from pipeline.models.trainable.new_vocabulary import count_words
from pipeline.models.trainable.saving import save_folder
from pipeline.settings import EncoderSettings, EncodeSettings, Job
from pipeline.settings.weights import DanSettings
from tests.models.folder.wordfiles import minilm_table, write_words
from tests.models.folders import LONG, TEXTS, edit_json
from tests.models.trainable.recurrents import word_counts

SMALL = DanSettings(width=16, layers=2, word_dim=12, buckets=64)
MANY = [" ".join(np.random.default_rng(seed).choice(LONG.split()[:16], 1 + seed % 37)) for seed in range(150)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> EncoderFolder:
    path = tmp_path_factory.mktemp("dan") / "new"
    write_dan_folder(SMALL, word_counts(), path, seed=1)
    return open_folder(EncoderSettings(path=str(path)))


def encoder_of(folder: EncoderFolder, **changes: object) -> Encoder:
    settings = {"path": str(folder.path), **changes}
    return load_encoder(EncoderSettings.model_validate(settings), EncodeSettings())


def by_hand(encoder: TrainableEncoder, ids: list[int]) -> torch.Tensor:
    """Vector of the words between a start and an end token, in float64, one gram after another."""
    inner = ids[1:-1] or ids
    pairs = [buckets_of(np.array([a]), np.array([b]), 64)[0] for a, b in pairwise(inner)]
    backbone = encoder.backbone
    grams = [*backbone.word_table[inner].double(), *backbone.bigrams.weight[pairs].double()]
    x = torch.stack(grams).sum(0) / (2 * len(inner) - 1)
    for layer in encoder.tail:
        x = torch.tanh(layer.linear.weight.double() @ x + layer.linear.bias.double())
    return x


def test_golden_words_and_bigrams_have_one_mean(tmp_path: Path):
    """G-04 of the specification: three words, two bigrams, and the mean of all five."""
    settings = DanSettings(width=3, word_dim=2, buckets=1_000)
    write_dan_folder(settings, count_words(["red green blue"]), tmp_path / "new", seed=0)
    golden = open_folder(EncoderSettings(path=str(tmp_path / "new")))
    encoder, tokens = load_trainable(golden), golden.tokenizer()(["Red green blue"])
    backbone, (_, red, green, blue, _) = encoder.backbone, tokens.ids
    with torch.no_grad():
        backbone.word_table[[red, green, blue]] = torch.tensor([[1.0, 0], [0, 1], [2, 2]])
        pairs = buckets_of(np.array([red, green]), np.array([green, blue]), 1_000)
        backbone.bigrams.weight[pairs] = torch.tensor([[1.0, 1], [-1, 3]])
    np.testing.assert_allclose(encoder.pool_states(tokens).detach(), [[0.6, 1.4]], atol=1e-6)


def test_vectors_are_those_computed_by_hand(folder: EncoderFolder):
    encoder, texts = load_trainable(folder).eval(), [*TEXTS, LONG, "two", "", "two two two"]
    tokens = folder.tokenizer()(texts)
    ids = [part.tolist() for part in np.split(tokens.ids, tokens.offsets[1:-1])]
    expected = torch.stack([by_hand(encoder, each) for each in ids]).detach()
    assert expected.shape == (len(texts), 16) == (len(texts), folder.dim)
    assert expected.std(dim=0).max() > 1e-3
    np.testing.assert_allclose(encoder(tokens).detach(), expected, atol=1e-6)
    np.testing.assert_allclose(encoder_of(folder).encode(texts), expected, atol=1e-6)
    np.testing.assert_allclose(encoder_of(folder).encode(texts, query=True), expected, atol=1e-6)


def test_the_order_of_words_counts(folder: EncoderFolder):
    one, other = encoder_of(folder).encode(["a dog bites a man", "a man bites a dog"])
    assert np.abs(one - other).max() > 1e-4


def test_a_prompt_that_is_not_pooled_has_no_bigram_with_the_text(folder: EncoderFolder):
    tokens = folder.tokenizer()(["a dog bites a man", "a"])
    grams = grams_of(tokens, 64, skip=3)
    expected = grams_of(folder.tokenizer()(["bites a man", "a"]), 64)
    for found, wanted in zip(grams, expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_buckets_are_spread_and_the_same_on_every_machine():
    first, second = (ids.ravel() for ids in np.meshgrid(np.arange(300), np.arange(300)))
    counts = np.bincount(buckets_of(first, second, 1_000), minlength=1_000)
    # 90 pairs a bucket; a Poisson distribution has a variance of 90
    assert 0.8 * 90 < counts.var() < 1.2 * 90
    assert buckets_of(np.array([1, 2]), np.array([2, 1]), 2**20).tolist() == [480974, 978023]


def test_a_text_has_the_same_bits_whatever_its_neighbours(folder: EncoderFolder):
    encoder, texts = encoder_of(folder), [*TEXTS, *MANY, LONG]
    vectors, order = encoder.encode(texts), np.random.default_rng(0).permutation(len(texts))
    np.testing.assert_array_equal(encoder.encode([texts[row] for row in order]), vectors[order])
    alone = [encoder.encode(texts[row : row + 1]) for row in range(0, len(texts), 9)]
    np.testing.assert_array_equal(np.concatenate(alone), vectors[::9])
    assert encoder.counters.padding == 0


def test_every_weight_is_trained(folder: EncoderFolder):
    encoder = load_trainable(folder, dropout=0.3)
    assert encoder.backbone.has_dropout
    encoder(folder.tokenizer()(MANY)).square().sum().backward()
    assert all(parameter.grad is not None for parameter in encoder.parameters())


def test_the_saved_encoder_equals_the_trained_one_and_sentence_transformers_refuses_it(
    folder: EncoderFolder, tmp_path: Path
):
    opened = open_folder(EncoderSettings(path=str(folder.path), normalize=True, max_length=20))
    encoder, texts = load_trainable(opened), [*TEXTS, LONG]
    tokens = opened.tokenizer()(texts)
    encoder(tokens).square()[:, 1].sum().backward()
    torch.optim.SGD(encoder.parameters(), lr=1.0).step()
    saved = save_folder(encoder, opened, tmp_path / "saved")
    expected = encoder.eval()(tokens).detach()
    np.testing.assert_allclose(encoder_of(saved).encode(texts), expected, atol=1e-6)
    before = encoder_of(opened, normalize=True, max_length=20).encode(texts)
    assert np.abs(before - expected.numpy()).max() > 1e-3
    assert (saved.max_length, saved.pooling, saved.dim) == (20, ("mean",), 16)
    assert saved.space_id not in (opened.space_id, folder.space_id)
    assert save_folder(load_trainable(saved), saved, tmp_path / "again").space_id == saved.space_id
    with pytest.raises(ValueError, match="manta-dan"):
        SentenceTransformer(str(saved.path), device="cpu")


def test_fixed_words_are_not_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MANTA_CACHE", str(tmp_path / "cache"))
    known, table = minilm_table()
    file = write_words(tmp_path / "words.txt", known, table)
    settings = DanSettings(width=5, buckets=64, words=str(file), vocabulary=200)
    write_dan_folder(settings, word_counts(), tmp_path / "new", seed=0)
    fixed = open_folder(EncoderSettings(path=str(tmp_path / "new")))
    encoder, rows = load_trainable(fixed), fixed.tokenizer().vocabulary()
    word = known[100]
    np.testing.assert_array_equal(encoder.backbone.word_table[rows[word]], table[known.index(word)])
    encoder(fixed.tokenizer()(TEXTS)).sum().backward()
    untrained = [name for name, parameter in encoder.named_parameters() if parameter.grad is None]
    assert untrained == [f"backbone.{TABLE}"]


def test_unsupported_features_are_refused(folder: EncoderFolder, tmp_path: Path):
    encoder, tokens = load_trainable(folder), folder.tokenizer()(["two dogs"])
    with pytest.raises(ModelError, match="an encoder with layers"):
        encoder(tokens, positions=np.arange(4))
    with pytest.raises(ModelError, match="the only pooling of a deep averaging network"):
        open_folder(EncoderSettings(path=str(folder.path), pooling="max"))
    with pytest.raises(ModelError, match="a deep averaging network, which has vectors of words and of pairs"):
        encoder_of(folder).hidden_states()
    saved = save_folder(encoder, folder, tmp_path / "saved")
    edit_json(saved.path / "config.json", bigram_buckets=63)
    with pytest.raises(ModelError, match="belong together"):
        load_trainable(open_folder(EncoderSettings(path=str(saved.path))))
    with pytest.raises(ConfigError, match=r"dan\.width is 8, and word_table\.dim is 9"):
        load_settings(Job, None, ("train.dan.width=8", "train.word_table.dim=9"))


def test_equal_seeds_give_equal_weights(folder: EncoderFolder, tmp_path: Path):
    for name, seed in (("same", 1), ("other", 2)):
        write_dan_folder(SMALL, word_counts(), tmp_path / name, seed=seed)
    same, other = (open_folder(EncoderSettings(path=str(tmp_path / name))) for name in ("same", "other"))
    assert same.space_id == folder.space_id != other.space_id
