"""Contextuality matches its definitions over all occurrences; streaming gives the same for any batch size."""

from functools import partial

import numpy as np
import pytest

from pipeline.stats.contextuality import (
    LayerStates,
    States,
    explained_variance,
    gather_states,
    intra_similarity,
    layer_metrics,
    static_vector,
)
from pipeline.stats.encoder_geometry import measure_layer
from pipeline.stats.geometry import anisotropy
from pipeline.stats.occurrences import Occurrences, Tokenized, choose_occurrences, occurrences_for_pairs

OCCURRENCES = np.array([[1.0, 0], [1, 1], [0, 2]])
RANDOM = np.array([[1.0, 0], [2, 1], [1, 2], [-1, 1]])


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def test_values_match_a_hand_computation():
    assert anisotropy(OCCURRENCES) == pytest.approx(0.471405, abs=1e-6)
    assert intra_similarity(OCCURRENCES) == pytest.approx(0.789110, abs=1e-6)
    assert explained_variance(OCCURRENCES, "literal") == pytest.approx(0.757539, abs=1e-6)
    assert explained_variance(OCCURRENCES, "published") == pytest.approx(0.5, abs=1e-6)
    assert explained_variance(OCCURRENCES, "centred") == pytest.approx(0.950694, abs=1e-6)
    assert anisotropy(RANDOM) == pytest.approx(0.239089, abs=1e-6)
    assert explained_variance(RANDOM, "centred") == pytest.approx(0.703704, abs=1e-6)


@pytest.mark.parametrize("shape", [(5, 30), (30, 5), (2, 2)])
def test_explained_variance_matches_singular_values(shape: tuple[int, int]):
    x = np.random.default_rng(0).normal(loc=0.7, size=shape)
    for mev in ("centred", "literal"):
        values = np.linalg.svd(x - x.mean(axis=0) if mev == "centred" else x, compute_uv=False)
        assert explained_variance(x, mev) == pytest.approx(values[0] ** 2 / (values**2).sum())
    first = np.linalg.svd(x)[2][0]
    expected = (x @ first).var() / x.var(axis=0).sum()
    assert explained_variance(x, "published") == pytest.approx(expected)
    assert expected < explained_variance(x, "centred")


@pytest.mark.parametrize("shape", [(5, 30), (30, 5), (1, 4)])
@pytest.mark.parametrize("loc", [0.7, -0.7])
def test_static_vectors_are_first_singular_vectors_with_the_sign_of_the_mean(shape, loc):
    x = np.random.default_rng(0).normal(loc=loc, size=shape)
    expected = np.linalg.svd(x)[2][0]
    if (x @ expected).mean() < 0:
        expected = -expected
    found = static_vector(x.astype(np.float32))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert (x @ found).mean() > 0
    np.testing.assert_array_equal(static_vector(np.zeros(shape)), np.zeros(shape[1]))


def test_rotation_and_scale_do_not_matter():
    rotation = np.linalg.qr(np.random.default_rng(1).normal(size=(8, 8)))[0]
    x = np.random.default_rng(2).normal(size=(20, 8))
    published = partial(explained_variance, mev="published")
    for measure in (anisotropy, intra_similarity, explained_variance, published):
        assert measure(3 * x @ rotation) == pytest.approx(measure(x))
    same = np.ones((6, 4))
    assert (anisotropy(same), intra_similarity(same)) == (pytest.approx(1), pytest.approx(1))
    for mev in ("literal", "published", "centred"):
        assert explained_variance(same, mev) == pytest.approx(1)


def texts(count: int = 80, seed: int = 0) -> Tokenized:
    """Return texts of random length; ids below 3 are not words, nor are the first and last token of each
    text.
    """
    rng = np.random.default_rng(seed)
    lengths = rng.integers(2, 14, size=count)
    ids = np.minimum(rng.geometric(0.12, size=lengths.sum()), 40).astype(np.int32)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    is_word = ids >= 3
    is_word[offsets[:-1]] = is_word[offsets[1:] - 1] = False
    return Tokenized(ids, offsets, is_word)


def batches(tokens: Tokenized, states: list[np.ndarray], size: int, seed: int = 3) -> list[States]:
    """Return the states of all texts in random order, `size` texts at a time."""
    order = np.random.default_rng(seed).permutation(len(tokens.offsets) - 1)
    parts = np.split(order, range(size, len(order), size))
    indices = [
        np.concatenate([np.arange(tokens.offsets[row], tokens.offsets[row + 1]) for row in part])
        for part in parts
    ]
    return [
        States(part, tuple(layer[of_part] for layer in states))
        for part, of_part in zip(parts, indices, strict=True)
    ]


def test_chosen_words_occur_in_enough_texts():
    tokens = texts()
    chosen = choose_occurrences(tokens, min_texts=5, pairs=100, limit=10_000, seed=0)
    expected = {
        word
        for word in range(3, 41)
        if len(
            {o for o, i, w in zip(tokens.owners, tokens.ids, tokens.is_word, strict=True) if w and i == word}
        )
        >= 5
    }
    found = set()
    for word in chosen.words:
        indices = chosen.token_indices[word]
        assert tokens.is_word[indices].all()
        assert len({*tokens.ids[indices].tolist()}) == 1
        assert len({*tokens.owners[indices].tolist()}) == len(indices)
        word_id = int(tokens.ids[indices[0]])
        with_word = tokens.owners[tokens.is_word & (tokens.ids == word_id)]
        assert {*tokens.owners[indices].tolist()} == {*with_word.tolist()}, "occurrences are not capped"
        found.add(int(tokens.ids[indices[0]]))
    assert found == expected
    left, right = tokens.owners[chosen.token_indices[chosen.pairs]].T
    assert len(left) == 100
    assert (left != right).all()
    assert tokens.is_word[chosen.token_indices[chosen.pairs]].all()
    assert chosen.compared == occurrences_for_pairs(100) == 14


def test_random_pairs_are_uniform_over_words_of_different_texts():
    tokens = Tokenized(np.arange(6, dtype=np.int32), np.array([0, 1, 3, 6]), np.ones(6, bool))
    chosen = choose_occurrences(tokens, min_texts=2, pairs=60_000, limit=100, seed=1)
    left, right = chosen.token_indices[chosen.pairs].T
    np.testing.assert_allclose(np.bincount(left, minlength=6) / 60_000, 1 / 6, atol=0.01)
    partners = np.bincount(right[left == 0], minlength=6) / (left == 0).sum()
    np.testing.assert_allclose(partners, [0, 0.2, 0.2, 0.2, 0.2, 0.2], atol=0.02)
    partners = np.bincount(right[left == 4], minlength=6) / (left == 4).sum()
    np.testing.assert_allclose(partners, [1 / 3, 1 / 3, 1 / 3, 0, 0, 0], atol=0.02)


def test_random_words_are_of_uniform_texts_and_then_uniform():
    tokens = Tokenized(np.arange(6, dtype=np.int32), np.array([0, 1, 3, 6]), np.array([True] * 5 + [False]))
    chosen = choose_occurrences(tokens, min_texts=2, pairs=60_000, limit=100, seed=1)
    drawn = np.bincount(chosen.token_indices[chosen.random], minlength=6) / 60_000
    np.testing.assert_allclose(drawn, [1 / 3, 1 / 6, 1 / 6, 1 / 6, 1 / 6, 0], atol=0.01)


def test_a_word_that_is_too_frequent_for_the_memory_does_not_displace_the_others():
    ids = np.array([[9, 4 + text % 2] for text in range(40)], np.int32).ravel()
    tokens = Tokenized(ids, np.arange(0, 81, 2), np.ones(80, bool))
    for seed in range(4):
        chosen = choose_occurrences(tokens, min_texts=5, pairs=10, limit=39, seed=seed)
        (word,) = chosen.words  # 4 or 5, in 20 texts each: both together exceed the limit
        assert len(word) == 20


def test_words_beyond_the_memory_limit_are_left_out_at_random():
    tokens = texts(200)
    few = choose_occurrences(tokens, min_texts=5, pairs=100, limit=60, seed=0)
    assert 0 < sum(map(len, few.words)) <= 60
    again = choose_occurrences(tokens, min_texts=5, pairs=100, limit=60, seed=0)
    other = choose_occurrences(tokens, min_texts=5, pairs=100, limit=60, seed=1)
    np.testing.assert_array_equal(few.token_indices, again.token_indices)
    assert not np.array_equal(few.token_indices, other.token_indices)


@pytest.mark.parametrize("size", [1, 7, 80])
def test_streaming_matches_the_definitions_for_any_batch_size(size: int):
    tokens, rng = texts(), np.random.default_rng(5)
    states = [(rng.normal(size=(len(tokens.ids), 6)) + level).astype(np.float32) for level in (0.0, 0.8)]
    chosen = choose_occurrences(tokens, min_texts=5, pairs=200, limit=10_000, seed=2)
    layers = gather_states(batches(tokens, states, size), tokens, chosen)
    for layer, whole in zip(layers, states, strict=True):
        metrics = {name: metric.value for name, metric in layer_metrics(layer, chosen, 2).items()}
        np.testing.assert_array_equal(layer.occurrences, whole[chosen.token_indices])
        spans = [slice(*bounds) for bounds in zip(tokens.offsets, tokens.offsets[1:], strict=False)]
        np.testing.assert_allclose(layer.means, [whole[span].mean(axis=0) for span in spans], atol=1e-6)
        sentences = [whole[span][tokens.is_word[span]] for span in spans if tokens.is_word[span].sum() >= 2]
        assert metrics["intra_similarity"] == pytest.approx(
            np.mean([intra_similarity(x) for x in sentences]), abs=1e-6
        )
        occurrences = [whole[chosen.token_indices[word]] for word in chosen.words]
        similarities = [
            np.mean([cosine(a, b) for i, a in enumerate(x) for j, b in enumerate(x) if i != j])
            for x in (every[: occurrences_for_pairs(200)] for every in occurrences)
        ]
        assert metrics["self_similarity"] == pytest.approx(np.mean(similarities), abs=1e-6)
        baseline = np.mean([cosine(*whole[chosen.token_indices[pair]]) for pair in chosen.pairs])
        assert metrics["word_cosine"] == pytest.approx(baseline, abs=1e-6)
        assert metrics["self_similarity_adjusted"] == pytest.approx(
            np.mean(similarities) - baseline, abs=1e-6
        )
        assert metrics["intra_similarity_adjusted"] == pytest.approx(
            metrics["intra_similarity"] - baseline, abs=1e-6
        )
        assert metrics["explained_variance"] == pytest.approx(
            np.mean([explained_variance(x) for x in occurrences]), abs=1e-6
        )
        random = whole[chosen.token_indices[chosen.random]]
        assert len(random) == 200
        assert metrics["explained_variance_baseline"] == pytest.approx(explained_variance(random))
        assert metrics["explained_variance_adjusted"] == pytest.approx(
            metrics["explained_variance"] - metrics["explained_variance_baseline"]
        )


def test_adjusted_self_similarity_matches_a_hand_computation():
    layer = LayerStates(7, 1, 2)
    layer.occurrences[:] = np.vstack([OCCURRENCES, RANDOM])
    pairs = np.array([(i, j) for i in range(3, 7) for j in range(3, 7) if i != j])
    chosen = Occurrences(np.arange(7), (np.arange(3),), pairs, random=np.arange(3, 7), compared=3)
    metrics = layer_metrics(layer, chosen, 0)
    assert metrics["self_similarity_adjusted"].value == pytest.approx(0.232316, abs=1e-6)
    assert (metrics["self_similarity"].count, metrics["word_cosine"].count, metrics["word_cosine"].of) == (
        1,
        12,
        "pairs",
    )


def test_static_words_have_self_similarity_one_and_random_states_none():
    tokens, rng = texts(400), np.random.default_rng(7)
    table = rng.normal(size=(41, 16))
    static = table[tokens.ids].astype(np.float32)
    noise = rng.normal(size=(len(tokens.ids), 16)).astype(np.float32)
    chosen = choose_occurrences(tokens, min_texts=5, pairs=1_000, limit=100_000, seed=0)
    layers = gather_states(batches(tokens, [static, noise], 50), tokens, chosen)
    of_static, of_noise = (layer_metrics(layer, chosen, 0) for layer in layers)
    assert of_static["self_similarity"].value == pytest.approx(1, abs=1e-6)
    assert of_static["explained_variance"].value == pytest.approx(1)
    assert abs(of_noise["self_similarity_adjusted"].value) < 0.03


def test_random_states_of_frequent_words_explain_no_more_variance_than_random_words():
    """Rare words explain more in any model: the baseline has 1,000 rows, and they have few."""
    tokens = texts(3_000)
    noise = np.random.default_rng(7).normal(size=(len(tokens.ids), 16)).astype(np.float32)
    chosen = choose_occurrences(tokens, min_texts=400, pairs=1_000, limit=100_000, seed=0)
    (layer,) = gather_states(batches(tokens, [noise], 500), tokens, chosen)
    for mev in ("literal", "published", "centred"):
        metrics = layer_metrics(layer, chosen, 0, mev=mev)
        assert abs(metrics["explained_variance_adjusted"].value) < 0.03


def test_the_words_of_lowest_self_similarity_are_listed_in_ascending_order():
    tokens, rng = texts(400), np.random.default_rng(8)
    # the spread of a word's states grows with its id, so that its self-similarity decreases
    states = np.ones((len(tokens.ids), 32)) + 0.2 * tokens.ids[:, None] * rng.normal(
        size=(len(tokens.ids), 32)
    )
    chosen = choose_occurrences(tokens, min_texts=5, pairs=1_000, limit=100_000, seed=0)
    (layer,) = gather_states(batches(tokens, [states.astype(np.float32)], 50), tokens, chosen)
    word_ids = [int(tokens.ids[chosen.token_indices[word[0]]]) for word in chosen.words]
    names = [f"w{word_id}" for word_id in word_ids]
    level = measure_layer(3, layer, chosen, names, None, seed=0, mev="literal")
    expected = {}
    for word_id, word in zip(word_ids, chosen.words, strict=True):
        x = states[chosen.token_indices[word[: chosen.compared]]]
        pairs = [cosine(a, b) for i, a in enumerate(x) for b in x[:i]]
        expected[f"w{word_id}"] = (np.mean(pairs), len(word))
    lowest = sorted(expected, key=expected.__getitem__)[:10]
    assert [each.word for each in level.lowest] == lowest
    for each in level.lowest:
        assert (each.value, each.sentences) == (
            pytest.approx(expected[each.word][0], abs=1e-5),
            expected[each.word][1],
        )
    values = [value for value, _ in expected.values()]
    assert level.metrics["self_similarity"].value == pytest.approx(np.mean(values), abs=1e-5)
    assert max(values) > 0.4, "words differ"
    assert min(values) < 0.1


def test_words_of_equal_self_similarity_are_listed_by_name():
    layer = LayerStates(4, 1, 2)
    layer.occurrences[:] = 1
    rows = np.arange(4)
    chosen = Occurrences(rows, (rows[:2], rows[2:]), np.zeros((0, 2), np.int64), random=rows, compared=2)
    level = measure_layer(0, layer, chosen, ["b", "a"], None, seed=0, mev="literal")
    assert [each.word for each in level.lowest] == ["a", "b"]


def test_metrics_without_data_are_omitted():
    tokens = Tokenized(np.array([1, 2, 1, 2], np.int32), np.array([0, 2, 4]), np.zeros(4, bool))
    chosen = choose_occurrences(tokens, min_texts=2, pairs=10, limit=100, seed=0)
    (layer,) = gather_states([States(np.arange(2), (np.ones((4, 3), np.float32),))], tokens, chosen)
    assert layer_metrics(layer, chosen, 0) == {}
    assert layer.means.tolist() == [[1, 1, 1], [1, 1, 1]]
