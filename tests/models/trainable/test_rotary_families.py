"""Trainable encoders with rotary positions equal those of transformers, in vectors, gradients and files."""

from dataclasses import astuple

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel

from pipeline.models.trainable.dropout import rates_of
from pipeline.models.trainable.encoder import load_trainable
from pipeline.models.trainable.packed_backbone import PackedBackbone
from pipeline.models.trainable.saving import save_folder
from tests.models.folders import edit_json, encoder_at, folder_at
from tests.models.rotary_folders import ROTARY, save_rotary, texts_of
from tests.models.trainable.layer_calls import assert_checkpointing_is_exact
from tests.models.trainable.padded import mean, padded, tokens_of

TEXTS = texts_of([1, 3, 12, 40, 41, 90, 5, 130])


def stored_names(model, tmp_path):
    """Return the gradients of a model of transformers by the names of its checkpoint."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.grad)
    model.save_pretrained(tmp_path / "gradients")
    return load_file(tmp_path / "gradients" / "model.safetensors")


@pytest.mark.parametrize("name", ROTARY)
def test_vectors_and_every_gradient_equal_those_of_the_padded_model(tmp_path, name):
    path = save_rotary(name, tmp_path / name)
    encoder = load_trainable(folder_at(path, pooling="mean"), dropout=0.0)
    assert isinstance(encoder.backbone, PackedBackbone)
    # in float64, because transformers in float32 is further from it in sums over all tokens: by 2e-5 in the
    # gradient of nomic_bert's token types, whose rows it adds one by one, where this project is by 2e-6
    model, tokens = AutoModel.from_pretrained(path).double().eval(), tokens_of(path, TEXTS, 512)
    vectors, expected = encoder(tokens), mean(*padded(model, tokens))
    torch.testing.assert_close(vectors.double(), expected, atol=1e-5, rtol=0)
    weights = torch.randn(vectors.shape, generator=torch.Generator().manual_seed(0)) / len(tokens)
    (vectors * weights).sum().backward()
    (expected * weights.double()).sum().backward()
    trained = dict(encoder.backbone.named_parameters())
    reference = stored_names(model, tmp_path)
    assert trained.keys() == reference.keys()
    for parameter, gradient in reference.items():
        assert gradient.abs().max() > 0, parameter
        difference = (trained[parameter].grad - gradient).abs().max()
        assert difference <= 1e-5, (parameter, difference, gradient.abs().max())


@pytest.mark.parametrize("name", ["modernbert", "nomic_bert", "gte", "qwen3", "embedding-gemma"])
def test_a_saved_encoder_gives_the_trained_vectors(tmp_path, name):
    folder = folder_at(save_rotary(name, tmp_path / name), pooling="mean")
    encoder = load_trainable(folder, dropout=0.0)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.mul_(0.9)
    expected = encoder(tokens_of(folder.path, TEXTS, 512)).detach()
    saved = save_folder(encoder, folder, tmp_path / "saved").path
    np.testing.assert_allclose(encoder_at(saved).encode(TEXTS), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["modernbert", "gte", "qwen3"])
def test_checkpointing_computes_layers_again_with_the_same_dropout(tmp_path, name):
    folder = folder_at(save_rotary(name, tmp_path / name), pooling="mean")
    encoder = load_trainable(folder, dropout=0.1)
    assert_checkpointing_is_exact(encoder, tokens_of(folder.path, TEXTS[:5]))


@pytest.mark.parametrize("name", ["modernbert", "nomic_bert", "gte", "llama", "gemma3"])
def test_dropout_is_where_transformers_has_it(tmp_path, name):
    path = save_rotary(name, tmp_path / name)
    hidden = {"hidden_dropout_prob": 0.1, "embedding_dropout": 0.2, "mlp_dropout": 0.3}
    edit_json(path / "config.json", **hidden, attention_dropout=0.4, attention_probs_dropout_prob=0.4)
    modules = AutoModel.from_pretrained(path).modules()
    expected = {module.p for module in modules if isinstance(module, torch.nn.Dropout)} - {0.0}
    rates = rates_of(folder_at(path, pooling="mean"), None)
    assert {rates.embedding, rates.output, rates.inner, rates.feed_forward} - {0.0} == expected
    assert rates.attention == 0.4
    assert set(astuple(rates_of(folder_at(path, pooling="mean"), 0.6))) <= {0.0, 0.6}


def test_new_weights_leave_normalizations_the_identity(tmp_path):
    folder = folder_at(save_rotary("gemma3", tmp_path / "gemma3"), pooling="mean")
    torch.manual_seed(0)
    encoder = load_trainable(folder, fresh=True).eval()
    named = dict(encoder.backbone.named_parameters())
    assert named["norm.weight"].abs().max() == 0, "stored minus 1"
    assert named["layers.0.mlp.up_proj.weight"].std().item() == pytest.approx(0.02, rel=0.05)
    assert encoder(tokens_of(folder.path, TEXTS, 512)).isfinite().all()
