"""What is a word among signs, and how one takes another's place."""

from collections import Counter

import numpy as np
import pytest
from scipy.stats import chisquare

from pipeline.augment.words import amount, cased_like, parted, places
from pipeline.text.tokens.stop_words import STOP_WORDS


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("dog", ("", "dog", "")),
        ("(dog),", ("(", "dog", "),")),
        ("man's", ("", "man", "'s")),
        ("“Man’s”", ("“", "Man", "’s”")),
        ("don't", ("", "don't", "")),
        ("well-known.", ("", "well-known", ".")),
        ("...", ("...", "", "")),
        ("", ("", "", "")),
        ("'s", ("'", "s", "")),
        ("$5", ("$", "5", "")),
        ("हिन्दी।", ("", "हिन्दी", "।")),
        ("A", ("", "A", "")),
    ],
)
def test_a_word_stands_between_signs(word, expected):
    assert parted(word) == expected
    assert "".join(parted(word)) == word


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("dog", "hound"),
        ("Dog", "Hound"),
        ("DOG", "HOUND"),
        ("I", "Hound"),
        ("dOG", "hound"),
        ("Ärger", "Hound"),
    ],
)
def test_capitals_are_those_of_the_word_before(word, expected):
    assert cased_like(word, "hound") == expected


def test_what_is_written_with_capitals_keeps_them():
    assert cased_like("city", "London") == "London"


@pytest.mark.parametrize(
    ("words", "share", "exactly", "expected"),
    [(12, 0.1, None, 1), (1, 0.1, None, 1), (17, 0.1, None, 2), (12, 0.1, 5, 5), (26, 0.2, None, 5)],
)
def test_an_amount_is_at_least_one(words, share, exactly, expected):
    assert amount(words, share, exactly) == expected


def test_places_are_different_and_every_order_is_as_likely():
    rng = np.random.default_rng(0)
    found = Counter(tuple(places(2, 4, rng)) for _ in range(12_000))
    assert set(found) == {(one, other) for one in range(4) for other in range(4) if one != other}
    assert chisquare(list(found.values())).pvalue > 0.001
    assert sorted(places(9, 5, rng)) == list(range(5))
    assert places(3, 0, rng) == []


def test_stop_words_are_as_they_are_looked_up():
    assert {word.casefold() for word in STOP_WORDS} == STOP_WORDS
    assert {"the", "is", "don't"} <= STOP_WORDS
    assert not {"dog", "man"} & STOP_WORDS
