"""Dropout of the trainable encoder: its masks, random numbers and rates, and the layers where it acts."""

import shutil

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModel

from pipeline.models.trainable.dropout import Rates, dropout, rates_of
from pipeline.models.trainable.encoder import load_trainable
from tests.models.folders import FAMILIES, edit_json, folder_at
from tests.models.trainable.padded import PACKED, many, mean, packed_ids, padded, tokens_of

RATE_NAMES = {
    False: ("hidden_dropout_prob", "attention_probs_dropout_prob"),
    True: ("dropout", "attention_dropout"),
}
"""is DistilBERT -> keys of config.json: rate of dropout of hidden states, and of attention weights"""


@pytest.mark.parametrize("family", FAMILIES)
def test_dropout_depends_on_the_generator_and_differs_by_row(folders, family):
    encoder = load_trainable(folder_at(folders[family]))
    tokens = tokens_of(folders[family], ["Two dogs run.", "x", "Two dogs run."])
    torch.manual_seed(3)
    first = encoder(tokens)
    torch.manual_seed(3)
    torch.testing.assert_close(encoder(tokens), first, atol=0, rtol=0)
    assert (encoder(tokens) - first).abs().max() > 1e-3
    assert (first[0] - first[2]).abs().max() > 1e-3
    without_dropout = encoder.eval()(tokens)
    torch.testing.assert_close(without_dropout[0], without_dropout[2], atol=1e-6, rtol=0)
    torch.testing.assert_close(
        load_trainable(folder_at(folders[family]), dropout=0.0)(tokens), without_dropout, atol=0, rtol=0
    )


@pytest.mark.parametrize("family", PACKED)
def test_dropout_at_the_embeddings_zeroes_the_configured_proportion_and_keeps_the_mean(folders, family):
    encoder = load_trainable(folder_at(folders[family], pooling="static"), dropout=0.3)
    tokens, seen = tokens_of(folders[family], many(40)), []

    def watch(x, where):
        seen.append(x.detach())
        return x

    torch.manual_seed(0)
    encoder(tokens, at_embedding=watch)
    encoder.eval()(tokens, at_embedding=watch)
    with_dropout, without = seen
    dropped = with_dropout == 0
    assert dropped.float().mean() == pytest.approx(0.3, abs=0.01)
    torch.testing.assert_close(with_dropout[~dropped], without[~dropped] / 0.7, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", PACKED)
def test_dropout_rates_are_those_of_the_configuration_unless_overridden(folders, tmp_path, family):
    folder, is_distilbert = shutil.copytree(folders[family], tmp_path / family), family == "distilbert"
    hidden, attention = RATE_NAMES[is_distilbert]
    edit_json(folder / "config.json", **{hidden: 0.3, attention: 0.2})
    after_attention = 0.0 if is_distilbert else 0.3  # DistilBERT has no dropout after the attention
    assert rates_of(folder_at(folder), None) == Rates(0.3, 0.2, after_attention, 0.3)
    assert rates_of(folder_at(folder), 0.05) == Rates(0.05, 0.05, 0.0 if is_distilbert else 0.05, 0.05)


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "mpnet"])
def test_dropout_acts_at_each_configured_layer_with_the_variance_of_the_reference(folders, tmp_path, family):
    """With dropout at one kind of layer alone, the deviation over 400 draws equals the reference's."""
    names = RATE_NAMES[family == "distilbert"]
    tokens = packed_ids(400 * [np.random.default_rng(0).integers(5, 250, 12)])
    for chosen in names:
        folder = shutil.copytree(folders[family], tmp_path / chosen)
        edit_json(folder / "config.json", **{name: 0.2 * (name == chosen) for name in names})
        torch.manual_seed(0)
        encoder, model = load_trainable(folder_at(folder)), AutoModel.from_pretrained(folder).train()
        with torch.no_grad():
            found, expected = encoder(tokens).std(0), mean(*padded(model, tokens)).std(0)
        assert (found / expected).mean() == pytest.approx(1, abs=0.03)


SHAPE = (401, 253)  # an odd number of values


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5, 0.9])
def test_values_are_zeroed_at_the_rate_and_independently_of_each_other(rate):
    torch.manual_seed(0)
    dropped = (dropout(torch.ones(SHAPE), rate) == 0).numpy()
    deviation = np.sqrt(rate * (1 - rate) / dropped.size)
    assert dropped.mean() == pytest.approx(rate, abs=4 * deviation)
    flat = dropped.ravel().astype(float)
    for distance in (1, 2, 3, 4, SHAPE[1]):  # four neighbours share the bits of one number
        correlation = np.corrcoef(flat[:-distance], flat[distance:])[0, 1]
        assert abs(correlation) < 4 / np.sqrt(flat.size)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kept_values_and_their_gradient_are_scaled_as_by_torch(dtype):
    torch.manual_seed(0)
    x = torch.randn(SHAPE, dtype=dtype, requires_grad=True)
    y = dropout(x, 0.25)
    assert y.dtype == dtype
    expected = torch.where(y == 0, 0, x / 0.75)
    torch.testing.assert_close(y, expected)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient, torch.where(y == 0, 0.0, 1 / 0.75).to(dtype))


def test_masks_follow_from_the_generator_and_advance_it():
    x, state = torch.ones(SHAPE), torch.manual_seed(7).get_state()
    first, second = dropout(x, 0.1), dropout(x, 0.1)
    torch.set_rng_state(state)
    assert torch.equal(dropout(x, 0.1), first)
    assert not torch.equal(first, second)


@pytest.mark.parametrize(("rate", "training"), [(0.0, True), (0.3, False), (1.0, True)])
def test_without_a_draw_it_is_that_of_torch(rate, training):
    x, state = torch.randn(SHAPE), torch.get_rng_state()
    assert torch.equal(dropout(x, rate, training), F.dropout(x, rate, training))
    if rate < 1:
        assert torch.equal(torch.get_rng_state(), state)
