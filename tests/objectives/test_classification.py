"""Classification of sentence pairs by their vectors."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from pipeline.errors import ConfigError, DataError
from pipeline.objectives.classification import Classification
from pipeline.train.gradcache import loss_and_backward
from tests.objectives.tiny import Tiny, batch_of, texts

U, V = torch.tensor([[1.0, 2]]).double(), torch.tensor([[3.0, -1]]).double()
INFERSENT = ("u", "v", "|u-v|", "u*v")


def pairs(labels: list[int]):
    return batch_of(
        {"premise": texts(len(labels), 1), "hypothesis": texts(len(labels), 2), "label": np.array(labels)}
    )


def test_the_loss_of_one_pair_matches_a_hand_computation():
    objective = Classification(Tiny(dim=2), bias=False).double()
    with torch.no_grad():
        objective.classifier.weight.copy_(
            torch.tensor([[1, 0, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0], [0, 0, 0, 0, 0.5, 0.5]])
        )
    assert objective.loss((U, V), pairs([2])).total.item() == pytest.approx(1.054957, abs=1e-6)


def test_features_have_a_fixed_order():
    objective = Classification(
        Tiny(dim=2), features=("u*v", "|u-v|", "v", "u"), classes=8, bias=False
    ).double()
    with torch.no_grad():
        objective.classifier.weight.copy_(torch.eye(8))
    logits = torch.tensor([1.0, 2, 3, -1, 2, 3, 3, -2]).double()
    for label in (0, 3, 7):
        expected = torch.logsumexp(logits, 0) - logits[label]
        assert objective.loss((U, V), pairs([label])).total.item() == pytest.approx(
            expected.item(), abs=1e-12
        )


def test_a_hidden_layer_is_linear_by_default():
    plain = Classification(Tiny(), features=INFERSENT, hidden=512)
    assert [type(layer) for layer in plain.classifier] == [nn.Linear, nn.Linear]
    assert (
        plain.classifier[0].in_features,
        plain.classifier[0].out_features,
        plain.classifier[1].out_features,
    ) == (24, 512, 3)
    assert [type(layer) for layer in Classification(Tiny(), hidden=512, nonlinear=True).classifier] == [
        nn.Linear,
        nn.Tanh,
        nn.Linear,
    ]
    assert not any(
        "bias" in name
        for name, _ in Classification(Tiny(), hidden=4, bias=False).classifier.named_parameters()
    )


def test_zero_weights_give_the_logarithm_of_the_number_of_classes():
    objective = Classification(Tiny(), classes=5).double()
    nn.init.zeros_(objective.classifier.weight)
    nn.init.zeros_(objective.classifier.bias)
    assert loss_and_backward(objective, pairs([0, 1, 4])).loss.total.item() == pytest.approx(
        math.log(5), abs=1e-12
    )


def test_the_loss_is_a_mean_over_rows_in_any_order():
    torch.manual_seed(0)
    objective, batch = Classification(Tiny()).double(), pairs([0, 1, 2, 1])
    whole = loss_and_backward(objective, batch).loss.total
    torch.testing.assert_close(
        loss_and_backward(objective, batch.of_rows(np.array([2, 0, 3, 1]))).loss.total,
        whole,
        rtol=0,
        atol=1e-12,
    )
    alone = [loss_and_backward(objective, batch.of_rows(np.array([row]))).loss.total for row in range(4)]
    torch.testing.assert_close(sum(alone) / 4, whole, rtol=0, atol=1e-12)


def test_unknown_labels_and_features_are_refused():
    with pytest.raises(DataError, match=r"labels.*0 to 2.*found 3"):
        loss_and_backward(Classification(Tiny()).double(), pairs([0, 3]))
    with pytest.raises(ConfigError, match="features"):
        loss_and_backward(Classification(Tiny(), features=("u", "u")).double(), pairs([0, 1]))


@pytest.mark.parametrize("options", [{}, {"hidden": 64}, {"hidden": 64, "bias": False}])
def test_a_classifier_starts_with_small_normal_weights_and_zero_biases(options: dict):
    torch.manual_seed(0)
    layers = [
        layer
        for layer in Classification(Tiny(dim=100), **options).classifier.modules()
        if isinstance(layer, nn.Linear)
    ]
    for layer in layers:
        assert layer.weight.std().item() == pytest.approx(0.02, rel=0.1)
        assert layer.weight.mean().item() == pytest.approx(0, abs=0.004)
        assert layer.bias is None or not layer.bias.any()
