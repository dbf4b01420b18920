"""Words are deleted and pairs of neighbours exchanged with the configured probabilities."""

from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import binomtest

from pipeline.augment.corrupt import omit_words, swap_bigrams
from tests.augment.edits import SENTENCES, method, variants

WORDS = [str(number) for number in range(20)]


def gone(omit: float, span: int = 1, times: int = 3_000) -> np.ndarray:
    """Return whether each word is deleted in each of `times` variants: (times, 20) bool."""
    left = [
        set(variant)
        for _, variant in variants(method("corrupt", omit=omit, swap=0, span=span), [WORDS], times)
    ]
    return np.array([[word not in each for word in WORDS] for each in left])


def test_without_omit_and_swap_the_text_is_unchanged():
    assert all(variant == words for words, variant in variants(method("corrupt", omit=0, swap=0)))


@pytest.mark.parametrize("span", [1, 3])
@pytest.mark.parametrize("omit", [0.1, 0.4])
def test_each_word_is_deleted_equally_often_for_every_span(omit, span):
    for count in gone(omit, span).sum(axis=0).tolist():
        assert binomtest(count, 3_000, omit).pvalue > 1e-4


def test_inner_gaps_are_as_long_as_the_span():
    rows = ["".join("x" if is_gone else "." for is_gone in row) for row in gone(0.05, span=3, times=500)]
    gaps = [gap for row in rows for gap in row.strip("x").split(".") if gap]
    assert min(map(len, gaps)) == 3


@pytest.mark.parametrize("omit", [0.9, 1.0])
def test_at_least_one_word_is_kept_and_may_be_any(omit):
    found = variants(method("corrupt", omit=omit), SENTENCES[:1], 500)
    assert all(variant for _, variant in found)
    if omit == 1:
        assert {tuple(variant) for _, variant in found} == {(word,) for word in SENTENCES[0]}


def test_only_pairs_are_exchanged_with_their_probability():
    exchanged = np.zeros(10, dtype=int)
    for _, variant in variants(method("corrupt", omit=0, swap=0.3), [WORDS], 3_000):
        pairs = [variant[first : first + 2] for first in range(0, 20, 2)]
        assert [sorted(map(int, pair)) for pair in pairs] == [[first, first + 1] for first in range(0, 20, 2)]
        exchanged += [int(one) > int(other) for one, other in pairs]
    for count in exchanged.tolist():
        assert binomtest(count, 3_000, 0.3).pvalue > 1e-4


@pytest.mark.parametrize(("words", "expected"), [("abcdef", "badcfe"), ("abcde", "badce"), ("a", "a")])
def test_all_pairs_are_exchanged_at_probability_one(words, expected):
    assert swap_bigrams(list(words), 1.0, np.random.default_rng(0)) == list(expected)


def test_kept_words_stay_in_order():
    for number in range(50):
        left = list(map(int, omit_words(WORDS, 0.5, np.random.default_rng(number), 2)))
        assert all(one < other for one, other in pairwise(left))
