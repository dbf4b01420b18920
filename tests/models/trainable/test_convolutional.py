"""A convolutional encoder equals torch's convolutions text by text, and is an encoder like others: trained,
saved, encoded with the same bits whatever its neighbours, refused by libraries that cannot load it.
"""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sentence_transformers import SentenceTransformer

from pipeline.config import load_settings
from pipeline.errors import ConfigError, ModelError
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.folder import open_folder
from pipeline.models.folder.word_vectors import TABLE
from pipeline.models.inference.encoder import Encoder, load_encoder
from pipeline.models.trainable.encoder import load_trainable
from pipeline.models.trainable.new_convolutional import write_convolutional_folder
from pipeline.models.trainable.saving import save_folder
from pipeline.settings import EncoderSettings, EncodeSettings, Job
from pipeline.settings.weights import ConvolutionalSettings
from pipeline.text.tokens.tokens import Tokens
from tests.models.folder.wordfiles import minilm_table, write_words
from tests.models.folders import LONG, TEXTS, edit_json
from tests.models.trainable.layer_calls import layer_calls
from tests.models.trainable.recurrents import word_counts

WIDTH, LAYERS = 9, 4
MANY = [" ".join(np.random.default_rng(seed).choice(LONG.split()[:16], 1 + seed % 37)) for seed in range(150)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> EncoderFolder:
    path = tmp_path_factory.mktemp("convolutional") / "new"
    write_convolutional_folder(ConvolutionalSettings(width=WIDTH, word_dim=12), word_counts(), path, seed=1)
    return open_folder(EncoderSettings(path=str(path)))


def encoder_of(folder: EncoderFolder, **changes: object) -> Encoder:
    settings = {"path": str(folder.path), **changes}
    return load_encoder(EncoderSettings.model_validate(settings), EncodeSettings())


def by_conv1d(backbone: torch.nn.Module, ids: np.ndarray) -> torch.Tensor:
    """(layers * width,) vector of one text by torch's convolutions, in float64."""
    x = backbone.word_table[torch.from_numpy(ids).long()].double().T[None]
    maxima = []
    for layer in backbone.convolutions:
        kernel = layer.weight.double().unflatten(1, (3, -1)).permute(0, 2, 1)
        x = F.relu(F.conv1d(x, kernel, layer.bias.double(), padding=1))
        maxima.append(x.max(dim=2).values[0])
    return torch.cat(maxima)


def token_ids(folder: EncoderFolder, texts: list[str]) -> list[np.ndarray]:
    tokens = folder.tokenizer()(texts)
    return np.split(tokens.ids, tokens.offsets[1:-1])


def test_vectors_equal_torchs_convolutions_of_each_text_alone(folder: EncoderFolder):
    encoder, texts = load_trainable(folder).eval(), [*TEXTS, LONG]
    expected = torch.stack([by_conv1d(encoder.backbone, ids) for ids in token_ids(folder, texts)]).detach()
    assert expected.shape == (len(texts), WIDTH * LAYERS) == (len(texts), folder.dim)
    assert all(part.std(dim=0).max() > 1e-3 for part in expected.split(WIDTH, dim=1)), (
        "the outputs of every layer differ between texts"
    )
    np.testing.assert_allclose(encoder(folder.tokenizer()(texts)).detach(), expected, atol=1e-6)
    np.testing.assert_allclose(encoder_of(folder).encode(texts), expected, atol=1e-6)
    np.testing.assert_allclose(encoder_of(folder).encode(texts, query=True), expected, atol=1e-6)


def test_padding_in_a_batch_does_not_change_a_vector(folder: EncoderFolder):
    """Pads are zero before each layer and -1e9 before each maximum."""
    backbone, rows = load_trainable(folder).eval().backbone, token_ids(folder, ["two dogs", LONG])
    with torch.no_grad():
        for layer in backbone.convolutions:
            layer.bias.add_(0.5)  # a pad that is read would change both neighbours and maxima
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


def test_a_text_has_the_same_bits_whatever_its_neighbours(folder: EncoderFolder):
    encoder, texts = encoder_of(folder), [*TEXTS, *MANY, LONG]
    vectors, order = encoder.encode(texts), np.random.default_rng(0).permutation(len(texts))
    np.testing.assert_array_equal(encoder.encode([texts[row] for row in order]), vectors[order])
    alone = [encoder.encode(texts[row : row + 1]) for row in range(0, len(texts), 9)]
    np.testing.assert_array_equal(np.concatenate(alone), vectors[::9])


def test_every_gradient_equals_that_of_torchs_convolutions(folder: EncoderFolder):
    encoder = load_trainable(folder).double()
    rows = [np.array(row) for row in ([1, 5, 9, 2], [1, 2], [1, 7, 5, 5, 8, 2])]
    offsets = np.cumsum([0, *map(len, rows)])
    tokens = Tokens(np.concatenate(rows).astype(np.int32), offsets, np.zeros(len(rows), bool))
    direction = torch.randn(len(rows), folder.dim, generator=torch.Generator().manual_seed(0)).double()
    (encoder(tokens) * direction).sum().backward()
    found = {name: parameter.grad.clone() for name, parameter in encoder.named_parameters()}
    encoder.zero_grad()
    (torch.stack([by_conv1d(encoder.backbone, row) for row in rows]) * direction).sum().backward()
    for name, parameter in encoder.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, atol=1e-12, rtol=1e-9, msg=name)


def test_checkpointing_computes_layers_again_with_the_same_dropout(
    folder: EncoderFolder,
):
    encoder, tokens = load_trainable(folder, dropout=0.3), folder.tokenizer()(MANY[:20])
    assert encoder.backbone.has_dropout

    def gradients(checkpointing: bool) -> list[torch.Tensor]:
        encoder.backbone.checkpointing = checkpointing
        encoder.zero_grad()
        torch.manual_seed(5)
        calls = layer_calls(encoder.backbone, lambda: encoder(tokens).square().sum().backward())
        assert set(calls.values()) == {2 if checkpointing else 1}
        return [parameter.grad.clone() for parameter in encoder.parameters()]

    assert all(torch.equal(*pair) for pair in zip(gradients(False), gradients(True), strict=True))


def test_half_precision_is_close(folder: EncoderFolder):
    encoder, tokens = load_trainable(folder), folder.tokenizer()(MANY[:9])
    exact = encoder(tokens)
    encoder.backbone.precision = torch.bfloat16
    half = encoder(tokens)
    assert half.dtype == torch.float32
    assert torch.cosine_similarity(half, exact).min() > 0.999


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
    assert (
        np.abs(encoder_of(opened, normalize=True, max_length=20).encode(texts) - expected.numpy()).max()
        > 1e-3
    )
    assert (saved.max_length, saved.pooling) == (20, ("max",))
    assert saved.space_id not in (opened.space_id, folder.space_id)
    assert save_folder(load_trainable(saved), saved, tmp_path / "again").space_id == saved.space_id
    with pytest.raises(ValueError, match="manta-convolutional"):
        SentenceTransformer(str(saved.path), device="cpu")


def test_fixed_words_are_not_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MANTA_CACHE", str(tmp_path / "cache"))
    known, table = minilm_table()
    settings = ConvolutionalSettings(
        width=5, words=str(write_words(tmp_path / "words.txt", known, table)), vocabulary=200
    )
    write_convolutional_folder(settings, word_counts(), tmp_path / "new", seed=0)
    folder = open_folder(EncoderSettings(path=str(tmp_path / "new")))
    encoder, rows = load_trainable(folder), folder.tokenizer().vocabulary()
    word = known[100]
    np.testing.assert_array_equal(encoder.backbone.word_table[rows[word]], table[known.index(word)])
    encoder(folder.tokenizer()(TEXTS)).sum().backward()
    untrained = [name for name, parameter in encoder.named_parameters() if parameter.grad is None]
    assert untrained == [f"backbone.{TABLE}"]


def test_the_last_hidden_state_has_the_outputs_of_all_layers_side_by_side(folder: EncoderFolder):
    hidden = encoder_of(folder).hidden_states()
    [found] = hidden.states(hidden.tokens(TEXTS[:3]))
    assert [layer.shape[1] for layer in found.layers] == [12, 9, 9, 9, 9, 36]
    np.testing.assert_array_equal(found.layers[5], np.concatenate(found.layers[1:5], axis=1))


def test_unsupported_features_are_refused(folder: EncoderFolder, tmp_path: Path):
    encoder, tokens = load_trainable(folder), folder.tokenizer()(["two dogs"])
    with pytest.raises(ModelError, match="an encoder with position embeddings"):
        encoder(tokens, positions=np.arange(4))
    for pooling, found in (
        ("cls", "for a convolutional encoder"),
        ("ends", "an encoder of two directions"),
        ("mask", "for a convolutional encoder"),
    ):
        with pytest.raises(ModelError, match=found):
            open_folder(EncoderSettings(path=str(folder.path), pooling=pooling))
    saved = save_folder(encoder, folder, tmp_path / "saved")
    edit_json(saved.path / "config.json", num_hidden_layers=3)
    with pytest.raises(ModelError, match="belong together"):
        load_trainable(open_folder(EncoderSettings(path=str(saved.path))))
    with pytest.raises(ConfigError, match=r"recurrent\.cell is gru, and convolutional\.width is 8"):
        load_settings(Job, None, ("train.recurrent.cell=gru", "train.convolutional.width=8"))


def test_equal_seeds_give_equal_weights_and_copies_are_independent(folder: EncoderFolder, tmp_path: Path):
    for name, seed in (("same", 1), ("other", 2)):
        settings = ConvolutionalSettings(width=WIDTH, word_dim=12)
        write_convolutional_folder(settings, word_counts(), tmp_path / name, seed=seed)
    same, other = (open_folder(EncoderSettings(path=str(tmp_path / name))) for name in ("same", "other"))
    assert same.space_id == folder.space_id != other.space_id
    encoder, tokens = load_trainable(folder), folder.tokenizer()(TEXTS[:3])
    before = encoder(tokens).detach()
    assert not torch.equal(copy.deepcopy(encoder).draw()(tokens), before)
    assert torch.equal(encoder(tokens), before)
