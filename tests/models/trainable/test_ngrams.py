"""The pooling ngrams equals torch's convolutions text by text, and is part of the encoder: trained, saved,
encoded with the same bits whatever its neighbours, refused without weights.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sentence_transformers import SentenceTransformer

from pipeline.errors import ModelError
from pipeline.models.layers.ngrams import NgramPooling, neighbourhoods
from pipeline.models.spec.pooling import find_segments
from pipeline.models.trainable.encoder import load_trainable
from pipeline.models.trainable.saving import save_folder
from tests.models.folders import LONG, TEXTS, encoder_at, folder_at, hidden_states
from tests.models.trainable.padded import many, tokens_of, trained

WINDOWS = (1, 3, 5)


def by_conv1d(pooling: NgramPooling, states: torch.Tensor) -> torch.Tensor:
    """(d,) vector of one text with the states (tokens, d), by torch's convolutions in float64."""
    outputs = []
    for layer, window in zip(pooling.convolutions, WINDOWS, strict=True):
        kernel = layer.weight.double().unflatten(1, (window, -1)).permute(0, 2, 1)
        convolved = F.conv1d(states.T[None].double(), kernel, layer.bias.double(), padding=window // 2)
        outputs.append(convolved[0].T)
    return F.relu(torch.cat(outputs, dim=1)).mean(dim=0).detach()


@pytest.fixture(scope="module")
def saved(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT whose convolutions were trained for one step, in a folder of its own."""
    folder = folder_at(folders["bert"], pooling="ngrams", max_length=40)
    return save_folder(trained(folder), folder, tmp_path_factory.mktemp("ngrams") / "saved").path


@pytest.mark.parametrize("family", ["bert", "mpnet", "electra"])
def test_vectors_equal_torchs_convolutions_of_each_text_alone(folders, tmp_path, family):
    folder = folder_at(folders[family], pooling="ngrams")
    torch.manual_seed(0)
    encoder = load_trainable(folder).eval()
    expected = torch.stack(
        [by_conv1d(encoder.ngrams, hidden_states(folders[family], text)[-1]) for text in TEXTS]
    )
    assert expected.shape == (len(TEXTS), folder.dim)
    assert (expected.std(dim=0) > 1e-4).float().mean() > 0.8, "most features differ between texts"
    found = encoder(tokens_of(folders[family], TEXTS)).detach()
    np.testing.assert_allclose(found, expected, atol=1e-5)
    path = save_folder(encoder, folder, tmp_path / "saved").path
    np.testing.assert_allclose(encoder_at(path).encode(TEXTS), expected, atol=1e-5)
    np.testing.assert_allclose(encoder_at(path).encode(TEXTS, query=True), expected, atol=1e-5)


@pytest.mark.parametrize("width", [48, 49, 50])
def test_windows_share_the_width_evenly_and_leave_out_tokens_that_are_not_pooled(width: int):
    torch.manual_seed(0)
    pooling = NgramPooling(width)
    sizes = [layer.out_features for layer in pooling.convolutions]
    assert sum(sizes) == width
    assert max(sizes) - min(sizes) <= 1
    lengths, skip = np.array([9, 4, 2, 1]), 1
    starts = np.cumsum(lengths) - lengths
    states, kept = torch.randn(20, width), np.random.default_rng(0).random(16) < 0.6
    segments = find_segments(starts, lengths, skip, torch.from_numpy, kept)
    found = pooling(states, segments).detach()
    of_text = segments.indices.split(segments.counts.tolist())
    assert [len(indices) for indices in of_text] != lengths.tolist()
    expected = torch.stack([by_conv1d(pooling, states[indices]) for indices in of_text])
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_neighbours_of_another_text_are_zero():
    x = torch.tensor([[1.0], [2], [3], [4], [5]])
    found = neighbourhoods(x, torch.tensor([0, 0, 0, 1, 2]), 1)
    assert found.tolist() == [[0, 1, 2], [1, 2, 3], [2, 3, 0], [0, 4, 0], [0, 5, 0]]


def test_the_saved_encoder_continues_and_keeps_its_space(saved: Path, tmp_path: Path):
    folder = folder_at(saved)
    assert (folder.pooling, folder.max_length, folder.dim) == (("ngrams",), 40, 48)
    torch.manual_seed(1)
    again = save_folder(load_trainable(folder), folder, tmp_path / "again")
    assert again.space_id == folder.space_id
    np.testing.assert_array_equal(encoder_at(again.path).encode(TEXTS), encoder_at(saved).encode(TEXTS))
    other = save_folder(load_trainable(folder).draw(), folder, tmp_path / "other")
    assert other.space_id != folder.space_id


def test_the_space_depends_on_the_convolutions_alone(saved: Path, tmp_path: Path):
    folder, encoder = folder_at(saved), load_trainable(folder_at(saved))
    with torch.no_grad():
        encoder.ngrams.convolutions[2].bias += 0.1
    changed = save_folder(encoder, folder, tmp_path / "changed")
    assert changed.space_id != folder.space_id
    assert (changed.path / "model.safetensors").read_bytes() == (saved / "model.safetensors").read_bytes()
    means = [folder_at(path, pooling="mean") for path in (saved, changed.path)]
    assert means[0].space_id == means[1].space_id


def test_the_bits_of_a_text_do_not_depend_on_its_batch(saved: Path):
    encoder, texts = encoder_at(saved), [*TEXTS, *many(80)]
    together = encoder.encode(texts)
    for index in range(0, len(texts), 9):
        np.testing.assert_array_equal(encoder.encode([texts[index]])[0], together[index])
    np.testing.assert_array_equal(encoder.encode(texts[::-1])[::-1], together)


def test_inference_without_trained_convolutions_is_refused(folders: dict[str, Path]):
    with pytest.raises(
        ModelError, match=r"encoder.pooling ngrams: expected the trained convolutions .* is_bert"
    ):
        encoder_at(folders["bert"], pooling="ngrams")


def test_damaged_weights_are_refused(saved: Path, tmp_path: Path):
    copy = save_folder(load_trainable(folder_at(saved)), folder_at(saved), tmp_path / "copy").path
    (copy / "1_Pooling" / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="the trained convolutions"):
        encoder_at(copy)


def test_sentence_transformers_refuses_the_pooling(saved: Path):
    with pytest.raises(ValueError, match="pooling mode"):
        SentenceTransformer(str(saved), device="cpu")


def test_longer_texts_are_truncated_as_with_other_poolings(saved: Path):
    encoder = load_trainable(folder_at(saved)).eval()
    expected = encoder(folder_at(saved).tokenizer()([LONG])).detach()
    np.testing.assert_allclose(encoder_at(saved).encode([LONG]), expected, atol=1e-5)
