"""The Jensen-Shannon estimate of IS-BERT equals its definition, over all rows or in two parts."""

import math

import numpy as np
import pytest
import torch

from pipeline.errors import ConfigError, Defect, ModelError
from pipeline.losses.information import jensen_shannon

COUNTS = torch.tensor([3, 1, 4, 2])
RNG = np.random.default_rng(0)
FEATURES = torch.from_numpy(RNG.normal(size=(10, 5)))
VECTORS = torch.from_numpy(RNG.normal(size=(4, 5)))


def softplus(x: float) -> float:
    return math.log1p(math.exp(x))


def by_definition(excluded: np.ndarray | None = None) -> float:
    """Pair each vector with the features of its own sentence and of others, as in the paper.

    Features of sentences that mean the same are left out on both sides.
    """
    of_sentence = np.split(FEATURES.numpy(), np.cumsum(COUNTS)[:-1])
    total = 0.0
    for own, vector in enumerate(VECTORS.numpy()):
        total += sum(softplus(-feature @ vector) for feature in of_sentence[own])
        others = [
            sum(softplus(feature @ vector) for feature in features)
            for other, features in enumerate(of_sentence)
            if other != own and (excluded is None or not excluded[other, own])
        ]
        total += sum(others) / len(others)
    return total / len(VECTORS)


def test_the_loss_equals_its_definition():
    assert jensen_shannon(FEATURES, COUNTS, VECTORS).item() == pytest.approx(by_definition(), abs=1e-12)


def test_sentences_that_mean_the_same_are_no_negatives():
    excluded = np.zeros((4, 4), bool)
    excluded[[0, 2, 1, 3], [2, 0, 3, 1]] = True  # two pairs of equal sentences: all have two others left
    found = jensen_shannon(FEATURES, COUNTS, VECTORS, excluded=torch.from_numpy(excluded))
    assert found.item() == pytest.approx(by_definition(excluded), abs=1e-12)
    assert found.item() != pytest.approx(by_definition(), abs=1e-3)


def test_the_mean_over_two_ranks_is_that_of_all_sentences():
    first = jensen_shannon(FEATURES[:4], COUNTS[:2], VECTORS)
    second = jensen_shannon(FEATURES[4:], COUNTS[2:], VECTORS, offset=2)
    assert (first + second).item() / 2 == pytest.approx(by_definition(), abs=1e-12)


def test_zero_products_give_two_log_two_for_each_token():
    found = jensen_shannon(torch.zeros(10, 5), COUNTS, VECTORS.float())
    assert found.item() == pytest.approx(2 * math.log(2) * 10 / 4, abs=1e-6)


def test_features_like_their_own_vector_alone_cost_nothing():
    vectors = 30 * torch.eye(4)
    features = torch.repeat_interleave(2 * torch.eye(4) - 1, COUNTS, dim=0)
    assert jensen_shannon(features, COUNTS, vectors).item() < 1e-10


def test_the_gradient_is_exact():
    features, vectors = FEATURES.clone().requires_grad_(), VECTORS.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x, y: jensen_shannon(x, COUNTS, y), (features, vectors))


def test_half_precision_is_computed_in_float32():
    found = jensen_shannon(FEATURES.bfloat16(), COUNTS, VECTORS.bfloat16())
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(by_definition(), rel=0.02)


def test_unsuitable_arguments_are_refused():
    with pytest.raises(ConfigError, match="at least two rows"):
        jensen_shannon(FEATURES[:3], COUNTS[:1], VECTORS[:1])
    with pytest.raises(Defect, match="features with 10 rows"):
        jensen_shannon(FEATURES[:9], COUNTS, VECTORS)
    with pytest.raises(Defect, match="excluded of shape"):
        jensen_shannon(FEATURES, COUNTS, VECTORS, excluded=torch.zeros(4, 3, dtype=torch.bool))
    with pytest.raises(ModelError, match="finite"):
        jensen_shannon(FEATURES * math.nan, COUNTS, VECTORS)
