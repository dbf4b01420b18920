"""Edit distances match dynamic programming; lexical overlap matches precision and recall; neighbour distances
and correlations match libraries.
"""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr
from sklearn.neighbors import NearestNeighbors

from pipeline.errors import DataError
from pipeline.stats.lexical import (
    edit_distance,
    edit_distances,
    lexical_overlap,
    neighbour_distances,
    rank_correlation,
)


def by_table(left: str, right: str) -> int:
    """Compute the edit distance by dynamic programming (Wagner & Fischer 1974)."""
    above = list(range(len(right) + 1))
    for row, a in enumerate(left, 1):
        current = [row]
        for column, b in enumerate(right, 1):
            current.append(min(above[column] + 1, current[-1] + 1, above[column - 1] + (a != b)))
        above = current
    return above[-1]


@given(st.text("abc ", max_size=90), st.text("abc ", max_size=90))
def test_edit_distance_matches_dynamic_programming(left: str, right: str):
    assert edit_distance(left, right) == edit_distance(right, left) == by_table(left, right)


@pytest.mark.parametrize(
    ("left", "right", "distance"),
    [("", "", 0), ("", "abc", 3), ("kitten", "sitting", 3), ("same", "same", 0), ("日本語", "日本人", 1)],
)
def test_published_distances(left: str, right: str, distance: int):
    assert edit_distance(left, right) == distance


def test_distances_can_be_counted_in_words():
    left, right = ["a man runs", "two  dogs", "x"], ["a dog runs fast", "two dogs", ""]
    assert edit_distances(left, right, "words").tolist() == [2, 0, 1]
    assert edit_distances(left, right).tolist() == [by_table(*pair) for pair in zip(left, right, strict=True)]


@pytest.mark.parametrize(
    ("left", "right", "overlap"),
    [
        ("a man runs", "a man runs", 1),
        ("a man runs", "runs a man", 1),
        ("a man runs", "two dogs", 0),
        ("a man runs", "a dog runs fast", 4 / 7),
        ("a a a b", "a a c", 4 / 7),  # a word counts as often as in the text that has it less often
        ("a a", "a", 2 / 3),
        ("", "a", 0),
        ("", "", 0),
    ],
)
def test_lexical_overlap_of_texts_computed_by_hand(left: str, right: str, overlap: float):
    assert lexical_overlap(left.split(), right.split()) == pytest.approx(overlap)


@given(st.lists(st.sampled_from("abc"), max_size=9), st.lists(st.sampled_from("abcd"), max_size=9))
def test_lexical_overlap_is_the_f1_of_matched_words(left: Sequence[str], right: Sequence[str]):
    unmatched, matched = list(right), 0
    for word in left:
        if word in unmatched:
            unmatched.remove(word)
            matched += 1
    found = lexical_overlap(left, right)
    assert found == lexical_overlap(right, left)
    assert 0 <= found <= 1
    if matched:
        precision, recall = matched / len(left), matched / len(right)
        assert found == pytest.approx(2 * precision * recall / (precision + recall))
    else:
        assert found == 0


def test_rank_correlation_matches_scipy_and_is_none_for_constants():
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 9, 200), rng.normal(size=200)
    metric = rank_correlation(x, y, "pairs", seed=3)
    assert metric is not None
    assert metric.value == pytest.approx(100 * spearmanr(x, y).statistic)
    assert (metric.count, metric.of, metric.seed) == (200, "pairs", 3)
    unit_norms = 1 + 1e-8 * rng.normal(size=200)  # different by rounding only
    assert rank_correlation(x, unit_norms, "pairs") is None
    assert rank_correlation(np.ones(5), y[:5], "pairs") is None


@pytest.mark.parametrize("rows", [20, 700])
def test_neighbour_distances_match_scikit_learn(rows: int):
    x = np.random.default_rng(1).normal(loc=3, size=(rows, 6))
    expected = NearestNeighbors(n_neighbors=4).fit(x).kneighbors()[0].mean(axis=1)
    np.testing.assert_allclose(neighbour_distances(x, 4), expected, atol=1e-6)
    with pytest.raises(DataError, match="more than 4 words"):
        neighbour_distances(x[:4], 4)
