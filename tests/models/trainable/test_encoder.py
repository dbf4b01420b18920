"""The trainable encoder equals the padded reference, in vectors and gradients, and copies are independent."""

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sentence_transformers import SentenceTransformer
from transformers import AutoModel

from pipeline.models.folder.token_filter import load_filter
from pipeline.models.layers.linear import TrainableLinear
from pipeline.models.trainable.encoder import load_trainable
from pipeline.models.trainable.saving import save_folder
from pipeline.text.tokens.load_tokenizer import load_tokenizer
from tests.models.folders import FAMILIES, TEXTS, edit_json, encoder_at, folder_at
from tests.models.poolings import OF_TRANSFORMERS
from tests.models.trainable.layer_calls import assert_checkpointing_is_exact
from tests.models.trainable.padded import many, mean, padded, tokens_of


@pytest.mark.parametrize("family", FAMILIES)
def test_vectors_and_every_gradient_equal_those_of_the_padded_model(folders, family):
    encoder = load_trainable(folder_at(folders[family]), dropout=0.0)
    model = AutoModel.from_pretrained(folders[family]).eval()
    tokens = tokens_of(folders[family], [*TEXTS, *many(30)])
    vectors, expected = encoder(tokens), mean(*padded(model, tokens))
    torch.testing.assert_close(vectors, expected, atol=1e-5, rtol=0)
    weights = torch.randn(vectors.shape, generator=torch.Generator().manual_seed(0)) / len(tokens)
    (vectors * weights).sum().backward()
    (expected * weights).sum().backward()
    trained = dict((encoder.backbone.model if family == "electra" else encoder.backbone).named_parameters())
    reference = {
        name: parameter.grad for name, parameter in model.named_parameters() if not name.startswith("pooler")
    }
    assert set(trained) - {"pooler.dense.weight", "pooler.dense.bias"} == set(reference)
    for name, gradient in reference.items():
        assert gradient.abs().max() > 0, name
        torch.testing.assert_close(trained[name].grad, gradient, atol=1e-5, rtol=0, msg=name)


@pytest.mark.parametrize("family", ["roberta", "mpnet", "electra"])
@pytest.mark.parametrize("pooling", [*OF_TRANSFORMERS, "mean+max"])
def test_every_pooling_equals_the_encoder_and_has_a_gradient(folders, family, pooling):
    folder = folder_at(folders[family], pooling=pooling)
    encoder = load_trainable(folder).eval()
    tokens = tokens_of(folders[family], TEXTS)
    vectors = encoder(tokens)
    expected = encoder_at(folders[family], pooling=pooling).encode(TEXTS)
    terms = tokens.lengths.max() if pooling == "sum" else 1  # rounding grows with the sum
    np.testing.assert_allclose(vectors.detach(), expected, atol=1e-5 * terms)
    vectors.square().sum().backward()
    name = "embeddings.word_embeddings.weight"
    gradient = next(parameter.grad for full, parameter in encoder.named_parameters() if full.endswith(name))
    assert gradient.isfinite().all()
    assert gradient.abs().max() > 0


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("frozen", ["nothing", "input", "weight"])
def test_the_linear_layer_equals_torch_forwards_and_backwards(bias, frozen):
    torch.manual_seed(0)
    layer = TrainableLinear(48, 96, bias=bias)
    x, gradient = torch.randn(37, 48, requires_grad=frozen != "input"), torch.randn(37, 96)
    layer.weight.requires_grad_(frozen != "weight")
    leaves = [tensor for tensor in (x, *layer.parameters()) if tensor.requires_grad]
    expected = F.linear(x, layer.weight, layer.bias)
    torch.testing.assert_close(layer(x), expected, atol=1e-5, rtol=0)
    for found, reference in zip(
        torch.autograd.grad(layer(x), leaves, gradient),
        torch.autograd.grad(expected, leaves, gradient),
        strict=True,
    ):
        torch.testing.assert_close(found, reference, atol=2e-5, rtol=0)


@pytest.mark.parametrize("pooling", ["mean", "max", "weighted_mean", "sqrt_len"])
def test_gradients_of_poolings_equal_finite_differences(folders, pooling):
    encoder = load_trainable(folder_at(folders["bert"], pooling=pooling), dropout=0.0)
    tokens, bump = tokens_of(folders["bert"], TEXTS[:3]), 3e-3
    direction = torch.randn(encoder(tokens).shape, generator=torch.Generator().manual_seed(1))
    # it shifts the last state of every token, so that vectors are linear in it
    bias = encoder.backbone.get_parameter("encoder.layer.2.output.LayerNorm.bias")
    (encoder(tokens) * direction).sum().backward()
    with torch.no_grad():
        before = (encoder(tokens) * direction).sum()
        bias[5] += bump
        after = (encoder(tokens) * direction).sum()
    assert (after - before).item() / bump == pytest.approx(bias.grad[5].item(), rel=2e-2, abs=2e-3)


@pytest.mark.parametrize("family", FAMILIES)
def test_checkpointing_computes_layers_again_with_the_same_dropout(folders, family):
    encoder = load_trainable(folder_at(folders[family]))
    assert_checkpointing_is_exact(encoder, tokens_of(folders[family], many(20)))


def test_excluded_tokens_do_not_affect_the_average(folders):
    changes = {"pooling": "mean", "exclude": ("punctuation", "case")}
    folder, tokenizer = folder_at(folders["bert"], **changes), load_tokenizer(folders["bert"], 64)
    tokens = tokenizer(TEXTS)
    kept = load_filter(folder, tokenizer)[tokens.ids]
    vectors = load_trainable(folder).eval()(replace(tokens, kept=kept)).detach()
    np.testing.assert_allclose(vectors, encoder_at(folders["bert"], **changes).encode(TEXTS), atol=1e-5)


@pytest.mark.parametrize("include", [True, False])
def test_a_prompt_is_pooled_or_excluded_as_configured_in_the_folder(folders, tmp_path, include):
    folder = folder_at(folders["bert"], prompt="a man ")
    source = save_folder(load_trainable(folder), folder, tmp_path / "saved").path
    edit_json(source / "1_Pooling" / "config.json", include_prompt=include)
    encoder, reference = load_trainable(folder_at(source)).eval(), encoder_at(source)
    tokens = load_tokenizer(source, 64, prompt="a man ")(TEXTS)
    np.testing.assert_allclose(encoder(tokens).detach(), reference.encode(TEXTS), atol=1e-5)
    np.testing.assert_allclose(
        reference.encode(TEXTS), SentenceTransformer(str(source), device="cpu").encode(list(TEXTS)), atol=1e-5
    )


@pytest.mark.parametrize("family", ["bert", "mpnet", "electra"])
def test_a_copy_is_independent(folders, family):
    encoder, tokens = load_trainable(folder_at(folders[family])).eval(), tokens_of(folders[family], TEXTS)
    before, copies = encoder(tokens).detach(), [copy.deepcopy(encoder)]
    if family != "electra":  # a model of transformers has hooks, which cannot be pickled
        copies.append(pickle.loads(pickle.dumps(encoder)))
    for copied in copies:
        torch.testing.assert_close(copied(tokens), before, atol=0, rtol=0)
        with torch.no_grad():
            for parameter in copied.parameters():
                parameter.mul_(0.9)
        assert (copied(tokens) - before).abs().max() > 1e-3
    torch.testing.assert_close(encoder(tokens), before, atol=0, rtol=0)


@pytest.mark.parametrize("family", ["bert", "mpnet"])
def test_half_precision_is_close_and_has_finite_gradients(folders, family):
    encoder = load_trainable(folder_at(folders[family]), dropout=0.0)
    tokens = tokens_of(folders[family], many(20))
    exact = encoder(tokens)
    with torch.autocast("cpu", torch.bfloat16):
        half = encoder(tokens)
    assert half.dtype == torch.float32
    assert torch.cosine_similarity(half, exact).min() > 0.999
    half.square().sum().backward()
    gradients = [parameter.grad for parameter in encoder.parameters()]
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)
