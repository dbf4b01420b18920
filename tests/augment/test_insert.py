"""Inserted words are synonyms of words of the text, whose own words keep their order."""

from collections import Counter

import pytest
from scipy.stats import chisquare

from tests.augment.edits import THESAURUS, is_subsequence, method, variants, write_thesaurus


@pytest.fixture
def file(tmp_path) -> str:
    return str(
        write_thesaurus(tmp_path, {word: others for word, others in THESAURUS.items() if word != "house"})
    )


@pytest.mark.parametrize(
    ("options", "wanted"), [({}, lambda words: max(1, round(0.1 * words))), ({"times": 4}, lambda words: 4)]
)
def test_the_configured_number_of_synonyms_is_inserted(file, options, wanted):
    for words, variant in variants(method("insert", synonyms=file, **options)):
        new = Counter(variant) - Counter(words)
        possible = {
            other
            for word in words
            for other in THESAURUS.get(word.strip(".,").removesuffix("'s"), "").split(",")
        } - {""}
        assert is_subsequence(words, variant)
        assert set(new) <= possible
        assert new.total() == (wanted(len(words)) if possible else 0)


def test_positions_words_and_synonyms_are_equally_likely(file):
    found = Counter(
        tuple(variant)
        for _, variant in variants(method("insert", synonyms=file), [["the", "big", "red", "thing"]], 5_000)
    )
    assert len(found) == 10
    assert chisquare(list(found.values())).pvalue > 0.001


def test_synonym_of_several_words_is_split(tmp_path):
    file = str(write_thesaurus(tmp_path, {"house": "dwelling place"}))
    found = {tuple(variant) for _, variant in variants(method("insert", synonyms=file), [["House."]], 50)}
    assert found == {("dwelling", "place", "House."), ("House.", "dwelling", "place")}


def test_text_without_synonyms_is_unchanged(file):
    assert all(
        variant == words
        for words, variant in variants(method("insert", synonyms=file), [["of", "the"], ["Snow"], []])
    )
