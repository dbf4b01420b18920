"""Dense modules have the activation that sentence-transformers has saved."""

import warnings

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Dropout, Pooling
from torch import nn

from pipeline.errors import ModelError
from pipeline.models.layers.post_pooling import ACTIVATIONS
from pipeline.models.trainable.encoder import load_trainable
from pipeline.models.trainable.saving import save_folder
from tests.models.folders import TEXTS, edit_json, encoder_at, folder_at
from tests.models.folders import save_folder as save_random


def of_vectors() -> list[str]:
    """Names of the activations of torch.nn that need no arguments and keep the shape of a matrix."""
    names = []
    for name in (*nn.modules.activation.__all__, "Identity"):
        try:
            if getattr(nn, name)()(torch.zeros(2, 6)).shape == (2, 6):
                names.append(name)
        except (TypeError, ValueError):
            continue
    return names


def save_with(activation: nn.Module, source, folder) -> SentenceTransformer:
    """Save a model with a Dense module of that activation."""
    torch.manual_seed(2)
    dense = Dense(48, 11, activation_function=activation)
    modules = [Transformer(str(source), max_seq_length=40), Pooling(48, "mean"), dense]
    model = SentenceTransformer(modules=modules, device="cpu")
    with torch.no_grad():
        for parameter in activation.parameters():
            parameter.fill_(0.4)  # not the value that a new one has
    model.save_pretrained(str(folder))
    return model


@pytest.mark.filterwarnings("ignore:Implicit dimension choice")
def test_every_activation_of_torch_is_known():
    names = of_vectors()
    assert set(names) == set(ACTIVATIONS)
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(0)) * 3
    for name in names:
        torch.testing.assert_close(
            ACTIVATIONS[name]().eval()(x), getattr(nn, name)().eval()(x), rtol=0, atol=0, msg=name
        )


@pytest.mark.filterwarnings("ignore:Implicit dimension choice")
@pytest.mark.parametrize("name", ["GELU", "Hardswish", "PReLU", "RReLU", "Softmax"])
def test_vectors_equal_those_of_sentence_transformers(folders, tmp_path, name: str):
    expected = save_with(getattr(nn, name)(), folders["bert"], tmp_path / "st").encode(list(TEXTS))
    encoder = encoder_at(tmp_path / "st")
    np.testing.assert_allclose(encoder.encode(TEXTS), expected, atol=1e-5)
    folder = folder_at(tmp_path / "st")
    saved = save_folder(load_trainable(folder).eval(), folder, tmp_path / "saved")
    np.testing.assert_allclose(encoder_at(saved.path).encode(TEXTS), expected, atol=1e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = SentenceTransformer(str(saved.path), device="cpu")
    np.testing.assert_allclose(again.encode(list(TEXTS)), expected, atol=1e-5)


def test_an_activation_outside_of_torch_is_refused(folders, tmp_path):
    save_with(nn.GELU(), folders["bert"], tmp_path / "st")
    edit_json(tmp_path / "st" / "2_Dense" / "config.json", activation_function="someones.code.GELU")
    with pytest.raises(ModelError, match=r"an activation among .*, found someones\.code\.GELU"):
        encoder_at(tmp_path / "st")


@pytest.mark.parametrize("position", [2, 3])
def test_dropout_modules_change_no_vector(tmp_path, position):
    folder = save_random(tmp_path / "plain", "bert")
    parts = [Transformer(str(folder)), Pooling(48), Normalize()]
    parts.insert(position, Dropout(0.5))
    peer = SentenceTransformer(modules=parts, device="cpu")
    peer.save(str(tmp_path / "published"))
    assert "Dropout" in (tmp_path / "published" / "modules.json").read_text()
    np.testing.assert_allclose(
        encoder_at(tmp_path / "published").encode(TEXTS), peer.encode(TEXTS), atol=1e-5
    )
