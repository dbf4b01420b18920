"""Metrics of a space match their definitions, survive JSON, and name what could not be measured."""

import numpy as np
import pytest
from scipy.stats import spearmanr

from pipeline.stats.geometry import alignment, anisotropy, cosines, uniformity
from pipeline.stats.space import (
    ScoredPairs,
    Space,
    cosine_bands,
    edit_bins,
    sentence_space,
    with_pairs,
    word_metrics,
)

RNG = np.random.default_rng(0)
TEXTS = [
    " ".join(RNG.choice(["a", "long", "short", "dog", "sentence"], size)) + f" {number}"
    for number, size in enumerate(RNG.integers(1, 12, size=120))
]
X = RNG.normal(loc=0.3, size=(120, 10)).astype(np.float32)
PAIRS = ScoredPairs.of(TEXTS[:60], TEXTS[60:], np.linspace(0, 5, 60), "characters")


def test_metrics_of_sentences_match_their_definitions():
    space = sentence_space(X, TEXTS, 5, 0)
    assert space.metrics["anisotropy"].value == anisotropy(X)
    assert space.metrics["uniformity"] == uniformity(X)
    assert (space.dim, sum(space.hub_counts), space.metrics["hub_skewness"].count) == (10, 120, 120)
    assert sum(times * count for times, count in enumerate(space.hub_counts)) == 5 * 120
    norms, lengths = np.linalg.norm(X, axis=1), [len(text) for text in TEXTS]
    assert space.metrics["length_norm"].value == pytest.approx(100 * spearmanr(norms, lengths).statistic)
    assert abs(space.metrics["length_cosine"].value) < 10  # random vectors do not depend on lengths
    np.testing.assert_allclose(
        space.spectrum_centred,
        np.linalg.svd(X - X.mean(axis=0), compute_uv=False) / np.linalg.svd(X - X.mean(axis=0))[1][0],
        atol=1e-5,
    )


def test_dependence_on_length_is_detected():
    lengths = np.array([len(text) for text in TEXTS], dtype=np.float64)
    angle = np.pi * lengths / lengths.max() / 2
    space = sentence_space(lengths[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1), TEXTS, 5, 0)
    assert space.metrics["length_norm"].value == pytest.approx(100)
    assert space.metrics["length_cosine"].value == pytest.approx(-100, abs=0.5)


def test_pairs_add_alignment_bands_and_edit_distance():
    space = with_pairs(sentence_space(X, TEXTS, 5, 0), X, PAIRS, 0)
    similarity, positive = cosines(X[:60], X[60:]), PAIRS.gold > 4
    assert PAIRS.sentences == TEXTS
    assert space.metrics["alignment"].value == pytest.approx(alignment(X[:60][positive], X[60:][positive]))
    assert space.metrics["alignment"].count == positive.sum() == 12
    assert space.metrics["pair_uniformity"] == uniformity(X)
    assert space.metrics["edit_correlation"].value == pytest.approx(
        100 * spearmanr(similarity, PAIRS.edits).statistic
    )
    assert space.metrics["gold_correlation"].value == pytest.approx(
        100 * spearmanr(similarity, PAIRS.gold).statistic
    )
    assert Space.model_validate_json(space.model_dump_json()) == space


def test_bands_contain_every_pair_once():
    gold = np.array([0.0, 0.99, 1.0, 2.5, 3.0, 4.0, 5.0])
    bands = cosine_bands(np.linspace(-1, 1, 7), gold)
    assert [band.total for band in bands] == [2, 1, 1, 1, 2]
    assert bands[4].mean == pytest.approx((2 / 3 + 1) / 2)


def test_edit_bins_have_equal_numbers_and_ascend():
    similarity = 1 - PAIRS.edits / PAIRS.edits.max()
    bins = edit_bins(similarity, PAIRS)
    assert [one.pairs for one in bins] == [6] * 10
    assert sorted(one.distance for one in bins) == [one.distance for one in bins]
    falling = [one.cosine_rank for one in bins]
    assert sorted(falling, reverse=True) == falling
    assert (
        np.mean(falling) == pytest.approx(np.mean([one.gold_rank for one in bins])) == pytest.approx(61 / 120)
    )  # the mean rank of 60, as a proportion
    assert edit_bins(10 * similarity**3, PAIRS) == bins  # ranks do not depend on scale


def test_missing_metrics_have_reasons():
    normalised = X / np.linalg.norm(X, axis=1, keepdims=True)
    few = sentence_space(normalised[:5], TEXTS[:5], 5, 0)
    assert few.missing == {
        "hubness": "needs more than 5 sentences, there are 5",
        "length_norm": "all vectors have the same norm",
    }
    flat = ScoredPairs.of(TEXTS[:60], TEXTS[60:], np.linspace(0, 4, 60), "words")
    assert with_pairs(few, X, flat, 0).missing["alignment"] == "no pair has a score above 4"


def test_dependence_on_word_frequency_is_detected():
    counts = np.arange(200, 0, -1)
    radius = np.linspace(1, 5, 200)
    table = radius[:, None] * RNG.normal(size=(200, 8)) / 3
    found, missing = word_metrics(radius[:, None] * np.eye(200), counts, 5)
    assert found["frequency_norm"].value == pytest.approx(100)  # rarer words have larger norms
    assert found["frequency_distance"].value > 99
    assert found["table_anisotropy"].value == pytest.approx(0)
    assert missing == {}
    assert word_metrics(table, counts, 5)[0]["frequency_norm"].value > 50
    assert word_metrics(table[:5], counts[:5], 5) == (
        {},
        {"word_frequency": "needs more than 5 words, there are 5"},
    )
