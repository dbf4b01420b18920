"""Classification of sentence pairs by their vectors."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from pipeline.errors import ConfigError, DataError
from pipeline.objectives import Batch
from pipeline.objectives.classification import Classification
from pipeline.train.gradcache import loss_and_backward
from tests.objectives.tiny import Tiny, batch_of, texts

U, V = torch.tensor([[1.0, 2]]).double(), torch.tensor([[3.0, -1]]).double()
INFERSENT = ("u", "v", "|u-v|", "u*v")


def pairs(labels: list[int]) -> Batch:
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


def test_the_order_of_features_is_fixed_whatever_the_order_of_the_option():
    objective = Classification(
        Tiny(dim=2), features=("u*v", "|u-v|", "v", "u"), classes=8, bias=False
    ).double()
    with torch.no_grad():
        objective.classifier.weight.copy_(torch.eye(8))
    logits = torch.tensor([1.0, 2, 3, -1, 2, 3, 3, -2]).double()  # u, v, |u-v|, u*v
    for label in (0, 3, 7):
        expected = torch.logsumexp(logits, 0) - logits[label]
        assert objective.loss((U, V), pairs([label])).total.item() == pytest.approx(
            expected.item(), abs=1e-12
        )


def test_a_hidden_layer_is_linear_by_default():
    linear = Classification(Tiny(dim=6), features=INFERSENT, hidden=512).classifier
    assert [type(layer) for layer in linear] == [nn.Linear, nn.Linear]
    assert [tuple(layer.weight.shape) for layer in linear] == [(512, 4 * 6), (3, 512)]
    with_tanh = Classification(Tiny(), hidden=512, nonlinear=True).classifier
    assert [type(layer) for layer in with_tanh] == [nn.Linear, nn.Tanh, nn.Linear]


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
    with pytest.raises(ConfigError, match=r"features: expected .*found u, u"):
        loss_and_backward(Classification(Tiny(), features=("u", "u")).double(), pairs([0, 1]))


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, {"weight", "bias"}),
        ({"hidden": 64}, {"0.weight", "0.bias", "1.weight", "1.bias"}),
        ({"hidden": 64, "bias": False}, {"0.weight", "1.weight"}),
    ],
)
def test_a_classifier_starts_with_small_normal_weights_and_zero_biases(
    options: dict[str, object], names: set[str]
):
    torch.manual_seed(0)
    parameters = dict(Classification(Tiny(dim=100), **options).classifier.named_parameters())
    assert parameters.keys() == names
    for name, values in parameters.items():
        if name.endswith("bias"):
            assert not values.any()
        else:
            assert values.std().item() == pytest.approx(0.02, rel=0.1)
            assert values.mean().item() == pytest.approx(0, abs=0.004)
