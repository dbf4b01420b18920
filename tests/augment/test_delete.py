"""The configured number of words is deleted, and the others stay in their order."""

from collections import Counter

import pytest
from scipy.stats import chisquare

from tests.augment.edits import is_subsequence, method, variants


@pytest.mark.parametrize(
    ("options", "gone"),
    [
        ({}, lambda words: max(1, round(0.1 * words))),
        ({"share": 0.3}, lambda words: max(1, round(0.3 * words))),
        ({"words": 1}, lambda words: 1),
        ({"words": 4}, lambda words: 4),
        ({"share": 1.0}, lambda words: words),
    ],
)
def test_the_configured_number_of_words_is_deleted_and_at_least_one_is_kept(options, gone):
    for words, variant in variants(method("delete", **options)):
        assert len(variant) == max(1, len(words) - gone(len(words)))
        assert is_subsequence(variant, words)


def test_every_word_is_equally_likely_to_be_deleted():
    words = [str(number) for number in range(8)]
    left = Counter(
        word for _, variant in variants(method("delete", words=3), [words], 4_000) for word in variant
    )
    assert sum(left.values()) == 5 * 4_000
    assert chisquare([left[word] for word in words]).pvalue > 0.001
