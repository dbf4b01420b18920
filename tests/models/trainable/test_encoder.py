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
from pipeline.models.inference.encoder import load_encoder
from pipeline.models.layers.linear import TrainableLinear
from pipeline.models.trainable.encoder import load_trainable
from pipeline.models.trainable.saving import save_folder
from pipeline.settings import EncoderSettings, EncodeSettings
from pipeline.text.tokens.load_tokenizer import load_tokenizer
from tests.models.folders import FAMILIES, TEXTS, edit_json, folder_at
from tests.models.poolings import OF_TRANSFORMERS
from tests.models.trainable.layer_calls import layer_calls
from tests.models.trainable.padded import many, mean, padded, tokens_of


@pytest.mark.parametrize("family", FAMILIES)
def test_vectors_and_every_gradient_equal_those_of_the_padded_model(folders, family):
    encoder, model = (
        load_trainable(folder_at(folders[family]), dropout=0.0),
        AutoModel.from_pretrained(folders[family]).eval(),
    )
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
    np.testing.assert_allclose(
        vectors.detach(),
        load_encoder(EncoderSettings(path=str(folders[family]), pooling=pooling), EncodeSettings()).encode(
            TEXTS
        ),
        atol=1e-5 * (tokens.lengths.max() if pooling == "sum" else 1),  # a sum grows with the text
    )
    vectors.square().sum().backward()
    name = "embeddings.word_embeddings.weight"
    gradient = next(parameter.grad for full, parameter in encoder.named_parameters() if full.endswith(name))
    assert gradient.isfinite().all()
    assert gradient.abs().max() > 0


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("frozen", ["nothing", "input", "weight"])
def test_the_linear_layer_equals_torch_forwards_and_backwards(bias, frozen):
    torch.manual_seed(0)
    layer, x, gradient = (
        TrainableLinear(48, 96, bias=bias),
        torch.randn(37, 48, requires_grad=frozen != "input"),
        torch.randn(37, 96),
    )
    layer.weight.requires_grad_(frozen != "weight")
    wanted = [tensor for tensor in (x, *layer.parameters()) if tensor.requires_grad]
    expected = F.linear(x, layer.weight, layer.bias)
    torch.testing.assert_close(layer(x), expected, atol=1e-5, rtol=0)
    for got, reference in zip(
        torch.autograd.grad(layer(x), wanted, gradient),
        torch.autograd.grad(expected, wanted, gradient),
        strict=True,
    ):
        torch.testing.assert_close(got, reference, atol=2e-5, rtol=0)


@pytest.mark.parametrize("pooling", ["mean", "max", "weighted_mean", "sqrt_len"])
def test_gradients_of_poolings_equal_finite_differences(folders, pooling):
    encoder = load_trainable(folder_at(folders["bert"], pooling=pooling), dropout=0.0)
    tokens, bump = tokens_of(folders["bert"], TEXTS[:3]), 3e-3
    direction = torch.randn(encoder(tokens).shape, generator=torch.Generator().manual_seed(1))
    bias = encoder.backbone.get_parameter(
        "encoder.layer.2.output.LayerNorm.bias"
    )  # shifts every token's last state: vectors are linear in it
    (encoder(tokens) * direction).sum().backward()
    with torch.no_grad():
        before = (encoder(tokens) * direction).sum()
        bias[5] += bump
        after = (encoder(tokens) * direction).sum()
    assert (after - before).item() / bump == pytest.approx(bias.grad[5].item(), rel=2e-2, abs=2e-3)


@pytest.mark.parametrize("family", FAMILIES)
def test_checkpointing_computes_layers_again_with_the_same_dropout(folders, family):
    encoder, tokens = load_trainable(folder_at(folders[family])), tokens_of(folders[family], many(20))

    def gradients(checkpointed):
        encoder.backbone.checkpointing = checkpointed
        encoder.zero_grad()
        torch.manual_seed(5)
        calls = layer_calls(encoder.backbone, lambda: encoder(tokens).square().sum().backward())
        assert set(calls.values()) == {2 if checkpointed else 1}
        return torch.rand(1), {
            name: parameter.grad.clone()
            for name, parameter in encoder.named_parameters()
            if parameter.grad is not None
        }

    (draw, stored), (draw_with_checkpoints, recomputed) = gradients(False), gradients(True)
    assert draw == draw_with_checkpoints  # both passes took as many random numbers
    assert set(stored) == set(recomputed)
    for name, gradient in stored.items():
        torch.testing.assert_close(recomputed[name], gradient, atol=0, rtol=0, msg=name)


def test_excluded_tokens_do_not_affect_the_average(folders):
    changes = {"pooling": "mean", "exclude": ("punctuation", "case")}
    folder, tokenizer = folder_at(folders["bert"], **changes), load_tokenizer(folders["bert"], 64)
    tokens = tokenizer(TEXTS)
    vectors = (
        load_trainable(folder)
        .eval()(replace(tokens, kept=load_filter(folder, tokenizer)[tokens.ids]))
        .detach()
    )
    np.testing.assert_allclose(
        vectors,
        load_encoder(EncoderSettings(path=str(folders["bert"]), **changes), EncodeSettings()).encode(TEXTS),
        atol=1e-5,
    )


def test_a_prompt_is_pooled_or_excluded_as_configured_in_the_folder(folders, tmp_path):
    source = save_folder(
        load_trainable(folder_at(folders["bert"], prompt="a man ")),
        folder_at(folders["bert"], prompt="a man "),
        tmp_path / "saved",
    ).path
    edit_json(source / "1_Pooling" / "config.json", include_prompt=False)
    encoder, reference = (
        load_trainable(folder_at(source)).eval(),
        load_encoder(EncoderSettings(path=str(source)), EncodeSettings()),
    )
    tokens = load_tokenizer(source, 64, prompt="a man ")(TEXTS)
    np.testing.assert_allclose(encoder(tokens).detach(), reference.encode(TEXTS), atol=1e-5)
    np.testing.assert_allclose(
        reference.encode(TEXTS), SentenceTransformer(str(source), device="cpu").encode(list(TEXTS)), atol=1e-5
    )


@pytest.mark.parametrize("family", ["bert", "mpnet", "electra"])
def test_a_copy_is_independent(folders, family):
    encoder, tokens = load_trainable(folder_at(folders[family])).eval(), tokens_of(folders[family], TEXTS)
    before = encoder(tokens).detach()
    for copied in (
        copy.deepcopy(encoder),
        *(() if family == "electra" else (pickle.loads(pickle.dumps(encoder)),)),
    ):  # transformers' hooks do not pickle
        torch.testing.assert_close(copied(tokens), before, atol=0, rtol=0)
        with torch.no_grad():
            for parameter in copied.parameters():
                parameter.mul_(0.9)
        assert (copied(tokens) - before).abs().max() > 1e-3
    torch.testing.assert_close(encoder(tokens), before, atol=0, rtol=0)


@pytest.mark.parametrize("family", ["bert", "mpnet"])
def test_half_precision_is_close_and_has_finite_gradients(folders, family):
    encoder, tokens = (
        load_trainable(folder_at(folders[family]), dropout=0.0),
        tokens_of(folders[family], many(20)),
    )
    exact = encoder(tokens)
    with torch.autocast("cpu", torch.bfloat16):
        half = encoder(tokens)
    assert half.dtype == torch.float32
    assert torch.cosine_similarity(half, exact).min() > 0.999
    half.square().sum().backward()
    gradients = [parameter.grad for parameter in encoder.parameters()]
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)
