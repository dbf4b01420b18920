"""Replacements are synonyms, with the capitals and the punctuation of the words that they replace."""

from collections import Counter

import numpy as np
import pytest
from scipy.stats import chisquare

from pipeline.augment import keyed_rng
from pipeline.augment.words import split_word
from tests.augment.edits import SENTENCES, THESAURUS, method, variants, write_thesaurus


@pytest.fixture
def file(tmp_path) -> str:
    return str(write_thesaurus(tmp_path))


def replaceable(words: list[str]) -> int:
    return sum(split_word(word)[1].casefold() in THESAURUS for word in words)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, lambda words: 1),
        ({"words": 3}, lambda words: 3),
        ({"words": None, "share": 0.2}, lambda words: max(1, round(0.2 * words))),
    ],
)
def test_the_configured_number_of_words_is_replaced(file, options, wanted):
    for words, variant in variants(
        method("synonym", synonyms=file, **options), [words for words in SENTENCES if "house." not in words]
    ):
        changed = [(word, other) for word, other in zip(words, variant, strict=True) if word != other]
        assert len(changed) == min(wanted(len(words)), replaceable(words))
        for word, other in changed:
            before, core, behind = split_word(word)
            assert (before, behind) == (split_word(other)[0], split_word(other)[2])
            assert split_word(other)[1].casefold() in THESAURUS[core.casefold()].split(",")
            assert core[0].isupper() == split_word(other)[1][0].isupper()


def test_punctuation_and_capitals_are_kept_and_a_synonym_may_be_several_words(file):
    edit = method("synonym", synonyms=file, words=9).start()
    found = {
        " ".join(edit(["The", "“House’s”", "GIRL", "(red)."], np.random.default_rng(number)))
        for number in range(60)
    }
    assert found == {"The “Home’s” LASS (crimson).", "The “Dwelling place’s” LASS (crimson)."}


def test_words_and_synonyms_are_equally_likely(file):
    words = ["dog", "the", "man", "runs", "Small"]
    found = Counter(
        tuple(variant) for _, variant in variants(method("synonym", synonyms=file), [words], 6_000)
    )
    assert len(found) == 6
    assert chisquare(list(found.values())).pvalue > 0.001


def test_text_without_synonyms_is_unchanged(file):
    assert all(
        variant == words
        for words, variant in variants(
            method("synonym", synonyms=file), [["of", "the"], ["Snow"], ["..."], []]
        )
    )


def test_edits_of_a_row_depend_on_its_generator_only(file):
    edit, again = (method("synonym", synonyms=file).start() for _ in range(2))
    rows = [(index, number) for index in range(len(SENTENCES)) for number in range(20)]
    expected = {row: edit(SENTENCES[row[0]], keyed_rng(0, *row)) for row in rows}
    np.random.default_rng(3).shuffle(rows)
    assert all(
        again(SENTENCES[index], keyed_rng(0, index, number)) == expected[index, number]
        for index, number in rows
    )
