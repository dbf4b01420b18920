"""A convolutional encoder equals torch's convolutions of each text, and is trained, saved and used like other
encoders.
"""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pipeline.config import load_settings
from pipeline.errors import ConfigError, ModelError
from pipeline.models.classic.convolutional import write_convolutional_folder
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.trainable.encoder import load_trainable
from pipeline.models.trainable.saving import save_folder
from pipeline.settings import Job
from pipeline.settings.weights import ConvolutionalSettings
from tests.models.classic.recurrents import word_counts
from tests.models.folder.wordfiles import minilm_table, write_words
from tests.models.folders import LONG, TEXTS, edit_json, encoder_at, folder_at
from tests.models.trainable.layer_calls import assert_checkpointing_is_exact
from tests.models.trainable.new_encoders import (
    assert_bits_do_not_depend_on_the_batch,
    assert_given_words_are_not_trained,
    assert_saved_as_trained,
)
from tests.models.trainable.padded import many, packed_ids

WIDTH, LAYERS = 9, 4
SMALL = ConvolutionalSettings(width=WIDTH, word_dim=12)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> EncoderFolder:
    path = tmp_path_factory.mktemp("convolutional") / "new"
    write_convolutional_folder(SMALL, word_counts(), path, seed=1)
    return folder_at(path)


def by_conv1d(backbone: torch.nn.Module, ids: np.ndarray) -> torch.Tensor:
    """Compute the vector of one text with torch's convolutions, (layers * width,) in float64."""
    x = backbone.word_table[torch.from_numpy(ids).long()].double().T[None]
    maxima = []
    for layer in backbone.convolutions:
        kernel = layer.weight.double().unflatten(1, (3, -1)).permute(0, 2, 1)
        x = F.relu(F.conv1d(x, kernel, layer.bias.double(), padding=1))
        maxima.append(x.max(dim=2).values[0])
    return torch.cat(maxima)


def token_ids(folder: EncoderFolder, texts: list[str]) -> list[np.ndarray]:
    """Return the token ids of each text."""
    tokens = folder.tokenizer()(texts)
    return np.split(tokens.ids, tokens.offsets[1:-1])


def test_vectors_equal_torchs_convolutions_of_each_text_alone(folder: EncoderFolder):
    encoder, texts = load_trainable(folder).eval(), [*TEXTS, LONG]
    expected = torch.stack([by_conv1d(encoder.backbone, ids) for ids in token_ids(folder, texts)]).detach()
    assert expected.shape == (len(texts), WIDTH * LAYERS) == (len(texts), folder.dim)
    for of_layer in expected.split(WIDTH, dim=1):
        assert of_layer.std(dim=0).max() > 1e-3, "the outputs of every layer differ between texts"
    np.testing.assert_allclose(encoder(folder.tokenizer()(texts)).detach(), expected, atol=1e-6)
    np.testing.assert_allclose(encoder_at(folder.path).encode(texts), expected, atol=1e-6)
    np.testing.assert_allclose(encoder_at(folder.path).encode(texts, query=True), expected, atol=1e-6)


def test_vectors_equal_those_of_padded_batches(folder: EncoderFolder):
    """In a padded batch, pads are zero before each layer and -1e9 before each maximum."""
    texts = ["two dogs", LONG]
    encoder, rows = load_trainable(folder).eval(), token_ids(folder, texts)
    backbone = encoder.backbone
    with torch.no_grad():
        for layer in backbone.convolutions:
            layer.bias.add_(0.5)  # so that reading beyond the end of a text changes sums and maxima
        found = encoder(folder.tokenizer()(texts))
        longest = max(map(len, rows))
        is_word = torch.stack([torch.arange(longest) < len(row) for row in rows])[:, None]
        ids = torch.stack([F.pad(torch.from_numpy(row).long(), (0, longest - len(row))) for row in rows])
        x, maxima = backbone.word_table[ids].transpose(1, 2) * is_word, []
        for layer in backbone.convolutions:
            kernel = layer.weight.unflatten(1, (3, -1)).permute(0, 2, 1)
            x = F.relu(F.conv1d(x, kernel, layer.bias, padding=1)) * is_word
            maxima.append(x.masked_fill(~is_word, -1e9).max(dim=2).values)
        alone = torch.stack([by_conv1d(backbone, row) for row in rows]).float()
    torch.testing.assert_close(torch.cat(maxima, dim=1), alone, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(found, alone, atol=1e-6, rtol=1e-5)


def test_the_bits_of_a_text_do_not_depend_on_its_batch(folder: EncoderFolder):
    assert_bits_do_not_depend_on_the_batch(folder)


def test_every_gradient_equals_that_of_torchs_convolutions(folder: EncoderFolder):
    encoder = load_trainable(folder).double()
    rows = [np.array(row) for row in ([1, 5, 9, 2], [1, 2], [1, 7, 5, 5, 8, 2])]
    direction = torch.randn(len(rows), folder.dim, generator=torch.Generator().manual_seed(0)).double()
    (encoder(packed_ids(rows)) * direction).sum().backward()
    found = {name: parameter.grad.clone() for name, parameter in encoder.named_parameters()}
    encoder.zero_grad()
    (torch.stack([by_conv1d(encoder.backbone, row) for row in rows]) * direction).sum().backward()
    for name, parameter in encoder.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, atol=1e-12, rtol=1e-9, msg=name)


def test_checkpointing_computes_layers_again_with_the_same_dropout(folder: EncoderFolder):
    assert_checkpointing_is_exact(load_trainable(folder, dropout=0.3), folder.tokenizer()(many(20)))
    assert not load_trainable(folder).backbone.has_dropout


def test_half_precision_is_close(folder: EncoderFolder):
    encoder, tokens = load_trainable(folder), folder.tokenizer()(many(9))
    exact = encoder(tokens)
    encoder.backbone.precision = torch.bfloat16
    half = encoder(tokens)
    assert half.dtype == torch.float32
    assert torch.cosine_similarity(half, exact).min() > 0.999


def test_the_saved_encoder_equals_the_trained_one_and_sentence_transformers_refuses_it(
    folder: EncoderFolder, tmp_path: Path
):
    assert folder.pooling == ("max",)
    assert_saved_as_trained(folder, tmp_path, "manta-convolutional")


@pytest.mark.usefixtures("cache")
def test_given_word_vectors_are_not_trained(tmp_path: Path):
    words = write_words(tmp_path / "words.txt", *minilm_table())
    settings = ConvolutionalSettings(width=5, words=str(words), vocabulary=200)
    write_convolutional_folder(settings, word_counts(), tmp_path / "new", seed=0)
    assert_given_words_are_not_trained(folder_at(tmp_path / "new"))


def test_the_last_hidden_state_is_the_concatenation_of_all_layers(folder: EncoderFolder):
    hidden = encoder_at(folder.path).hidden_states()
    [found] = hidden.states(hidden.tokens(TEXTS[:3]))
    assert [layer.shape[1] for layer in found.layers] == [12, 9, 9, 9, 9, 36]
    np.testing.assert_array_equal(found.layers[5], np.concatenate(found.layers[1:5], axis=1))


def test_unsupported_features_are_refused(folder: EncoderFolder, tmp_path: Path):
    encoder, tokens = load_trainable(folder), folder.tokenizer()(["two dogs"])
    with pytest.raises(ModelError, match="an encoder with position embeddings"):
        encoder(tokens, positions=np.arange(4))
    for pooling, message in (
        ("cls", "for a convolutional encoder"),
        ("ends", "an encoder of two directions"),
        ("mask", "for a convolutional encoder"),
    ):
        with pytest.raises(ModelError, match=message):
            folder_at(folder.path, pooling=pooling)
    saved = save_folder(encoder, folder, tmp_path / "saved")
    edit_json(saved.path / "config.json", num_hidden_layers=3)
    with pytest.raises(ModelError, match="belong together"):
        load_trainable(folder_at(saved.path))
    with pytest.raises(ConfigError, match=r"recurrent\.cell is gru, and convolutional\.width is 8"):
        load_settings(Job, None, ("train.recurrent.cell=gru", "train.convolutional.width=8"))


def test_equal_seeds_give_equal_weights(folder: EncoderFolder, tmp_path: Path):
    for name, seed in (("same", 1), ("other", 2)):
        write_convolutional_folder(SMALL, word_counts(), tmp_path / name, seed=seed)
    same, other = (folder_at(tmp_path / name) for name in ("same", "other"))
    assert same.space_id == folder.space_id != other.space_id


def test_a_copy_is_independent(folder: EncoderFolder):
    encoder, tokens = load_trainable(folder), folder.tokenizer()(TEXTS[:3])
    before = encoder(tokens).detach()
    assert not torch.equal(copy.deepcopy(encoder).draw()(tokens), before)
    assert torch.equal(encoder(tokens), before)
