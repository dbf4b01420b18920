"""Swaps move words and change none of them."""

from collections import Counter

import pytest
from scipy.stats import chisquare

from tests.augment.edits import method, variants


@pytest.mark.parametrize("options", [{}, {"share": 0.5}, {"times": 3}])
def test_swap_keeps_the_words(options):
    for words, variant in variants(method("swap", **options)):
        assert sorted(variant) == sorted(words)


def test_one_swap_exchanges_any_two_words():
    words = list("abcde")
    found = Counter("".join(variant) for _, variant in variants(method("swap", times=1), [words], 5_000))
    expected = set()
    for one in range(5):
        for other in range(one):
            moved = list(words)
            moved[one], moved[other] = moved[other], moved[one]
            expected.add("".join(moved))
    assert set(found) == expected
    assert chisquare(list(found.values())).pvalue > 0.001


def test_a_tenth_of_24_words_is_two_swaps():
    moved_words = [
        sum(index != int(word) for index, word in enumerate(variant))
        for _, variant in variants(method("swap"), [[str(number) for number in range(24)]])
    ]
    assert max(moved_words) == 4
    assert set(moved_words) <= {0, 3, 4}
