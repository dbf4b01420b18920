"""Words are separated from punctuation, and replacements get the case of the word."""

from collections import Counter

import numpy as np
import pytest
from scipy.stats import chisquare

from pipeline.augment.words import cased_like, draw_positions, edit_count, split_word
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
def test_split_word_separates_punctuation(word, expected):
    assert split_word(word) == expected
    assert "".join(split_word(word)) == word


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
def test_cased_like_copies_capitals(word, expected):
    assert cased_like(word, "hound") == expected


def test_cased_like_keeps_existing_capitals():
    assert cased_like("city", "London") == "London"


@pytest.mark.parametrize(
    ("words", "share", "exactly", "expected"),
    [(12, 0.1, None, 1), (1, 0.1, None, 1), (17, 0.1, None, 2), (12, 0.1, 5, 5), (26, 0.2, None, 5)],
)
def test_edit_count_is_at_least_one(words, share, exactly, expected):
    assert edit_count(words, share, exactly) == expected


def test_drawn_positions_are_different_and_equally_likely():
    rng = np.random.default_rng(0)
    found = Counter(tuple(draw_positions(2, 4, rng)) for _ in range(12_000))
    assert set(found) == {(one, other) for one in range(4) for other in range(4) if one != other}
    assert chisquare(list(found.values())).pvalue > 0.001
    assert sorted(draw_positions(9, 5, rng)) == list(range(5))
    assert draw_positions(3, 0, rng) == []


def test_stop_words_are_case_folded():
    assert {word.casefold() for word in STOP_WORDS} == STOP_WORDS
    assert {"the", "is", "don't"} <= STOP_WORDS
    assert not {"dog", "man"} & STOP_WORDS
