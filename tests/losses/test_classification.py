"""Pair features, cross-entropy over classes, and masking of tokens."""

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from scipy.special import log_softmax

from pipeline.errors import ConfigError, DataError, Defect, ModelError
from pipeline.losses.classification import FEATURES, classification, mask_tokens, masked_lm, pair_features

U, V = torch.tensor([[1.0, 2]], dtype=torch.float64), torch.tensor([[3.0, -1]], dtype=torch.float64)
RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(7, 3))
LABELS = np.array([0, 2, 1, 1, 0, 2, 2])


def test_pair_features_match_a_hand_computation():
    assert pair_features(U, V, FEATURES).tolist() == [[1, 2, 3, -1, 2, 3, 3, -2]]
    assert pair_features(U, V).tolist() == [[1, 2, 3, -1, 2, 3]]
    head = torch.tensor([[1, 0, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0], [0, 0, 0, 0, 0.5, 0.5]], dtype=torch.float64)
    logits = pair_features(U, V) @ head.T
    assert logits.tolist() == [[1, 3, 2.5]]
    assert classification(logits, torch.tensor([2])).item() == pytest.approx(1.054957, abs=1e-6)


@pytest.mark.parametrize("chosen", [some for size in range(1, 5) for some in combinations(FEATURES, size)])
def test_features_have_a_fixed_order(chosen):
    parts = {"u": [1, 2], "v": [3, -1], "|u-v|": [2, 3], "u*v": [3, -2]}
    expected = [value for name in FEATURES if name in chosen for value in parts[name]]
    assert pair_features(U, V, chosen).tolist() == pair_features(U, V, chosen[::-1]).tolist() == [expected]


@pytest.mark.parametrize("features", [(), ("u", "u"), ("u", "u-v")])
def test_unknown_repeated_or_missing_features_are_refused(features):
    with pytest.raises(ConfigError, match="features"):
        pair_features(U, V, features)


def test_classification_is_mean_negative_log_likelihood():
    expected = -log_softmax(LOGITS, axis=1)[np.arange(7), LABELS].mean()
    assert classification(torch.from_numpy(LOGITS), torch.from_numpy(LABELS)).item() == pytest.approx(
        expected, abs=1e-12
    )
    assert classification(torch.full((2, 5), 1e4), torch.tensor([0, 4])).item() == pytest.approx(
        math.log(5), abs=1e-6
    )


@pytest.mark.parametrize("label", [-1, 3])
def test_labels_outside_the_classes_are_refused(label):
    with pytest.raises(DataError, match=f"expected 0 to 2, found {label}"):
        classification(torch.zeros(2, 3), torch.tensor([0, label]))


def test_wrong_shapes_and_values_are_refused():
    with pytest.raises(Defect, match=r"labels of shape \(2,\)"):
        classification(torch.zeros(2, 3), torch.tensor([0]))
    with pytest.raises(Defect, match="at least one row"):
        classification(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long))
    with pytest.raises(DataError, match="integers"):
        classification(torch.zeros(1, 3), torch.tensor([1.0]))
    with pytest.raises(ModelError, match="1 of 2 rows"):
        classification(torch.tensor([[0.0, 1], [float("inf"), 0]]), torch.tensor([0, 1]))
    with pytest.raises(Defect, match="v with 1 rows"):
        pair_features(U, V.expand(2, 2))


def test_without_masked_words_loss_and_gradient_are_zero():
    logits = torch.zeros(0, 30, requires_grad=True)
    loss = masked_lm(logits, torch.zeros(0, dtype=torch.long))
    loss.backward()
    assert loss.item() == 0
    assert logits.grad.shape == (0, 30)


def test_losses_of_chunks_add_up_to_the_loss_of_the_batch():
    logits, words = torch.from_numpy(LOGITS), torch.from_numpy(LABELS)
    parts = [masked_lm(logits[part], words[part]) for part in (slice(0, 2), slice(2, 2), slice(2, 7))]
    assert sum(parts).item() == pytest.approx(masked_lm(logits, words).item(), abs=1e-12)
    mean = classification(logits, words)
    assert masked_lm(logits, words).item() / 7 == pytest.approx(mean.item(), abs=1e-12)


def test_masking_keeps_its_rates_and_skips_special_tokens():
    ids = RNG.integers(5, 1000, size=200_000).astype(np.int32)
    maskable = RNG.random(200_000) < 0.9
    corrupted, chosen = mask_tokens(
        ids, maskable, mask_id=4, vocabulary_size=1000, rng=np.random.default_rng(1)
    )
    assert corrupted.dtype == ids.dtype
    assert not chosen[~maskable].any()
    np.testing.assert_array_equal(corrupted[~chosen], ids[~chosen])
    assert chosen.sum() / maskable.sum() == pytest.approx(0.15, abs=0.004)  # about four standard errors
    assert (corrupted[chosen] == 4).mean() == pytest.approx(0.8, abs=0.01)
    assert (corrupted[chosen] == ids[chosen]).mean() == pytest.approx(0.1, abs=0.008)
    random = corrupted[chosen & (corrupted != 4) & (corrupted != ids)]
    assert len(random) / chosen.sum() == pytest.approx(0.1, abs=0.008)
    assert np.ptp(random) > 950


def test_masking_is_deterministic_per_seed_and_does_not_modify_its_input():
    ids, maskable = np.arange(60).reshape(6, 10), np.ones((6, 10), dtype=bool)
    one, two = (
        mask_tokens(ids, maskable, mask_id=99, vocabulary_size=60, rng=np.random.default_rng(5))
        for _ in range(2)
    )
    np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(ids, np.arange(60).reshape(6, 10))
    assert not mask_tokens(
        ids, maskable, mask_id=99, vocabulary_size=60, rng=np.random.default_rng(5), rate=0
    )[1].any()
    assert mask_tokens(ids, maskable, mask_id=99, vocabulary_size=60, rng=np.random.default_rng(5), rate=1)[
        1
    ].all()
    with pytest.raises(ConfigError, match="masking rate"):
        mask_tokens(ids, maskable, mask_id=99, vocabulary_size=60, rng=np.random.default_rng(5), rate=15)
    with pytest.raises(Defect, match="one value per token"):
        mask_tokens(ids, maskable[0], mask_id=99, vocabulary_size=60, rng=np.random.default_rng(5))
