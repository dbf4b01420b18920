"""EDA edits a text with one of four operations, with the probabilities of the paper."""

from collections import Counter

import pytest
from scipy.stats import binomtest, chisquare

from pipeline.errors import ConfigError
from tests.augment.edits import method, variants, write_thesaurus

# 16 words: the number of edits, 0.1 of them, is rounded to 2.
TEXT = "a big dog sees the small house near grass today while many people sleep quietly there"
WORDS = TEXT.split()


@pytest.fixture
def file(tmp_path) -> str:
    return str(
        write_thesaurus(
            tmp_path, {"big": "large", "dog": "hound", "small": "tiny", "house": "home", "grass": "lawn"}
        )
    )


def operation(variant: list[str]) -> str:
    """Name the operation that made a variant of WORDS, by its result."""
    new, gone = Counter(variant) - Counter(WORDS), Counter(WORDS) - Counter(variant)
    if not new and not gone:
        return "swap" if variant != WORDS else "nothing"
    if not new:
        return "delete"
    return "insert" if not gone else "synonym"


def operations(file: str, times: int = 4_000, **options: object) -> list[tuple[str, list[str]]]:
    """Return (operation, variant) of `times` variants of WORDS."""
    return [
        (operation(variant), variant)
        for _, variant in variants(method("eda", synonyms=file, **options), [WORDS], times)
    ]


def test_operations_are_equally_likely(file):
    counts = Counter(name for name, _ in operations(file))
    unchanged = 0.9 ** len(WORDS)  # probability that no word is deleted
    undone = 1 / 120  # probability that the second swap takes the pair of the first: 16 * 15 / 2 pairs
    expected = {
        "synonym": 1000,
        "insert": 1000,
        "swap": 1000 * (1 - undone),
        "delete": 1000 * (1 - unchanged),
        "nothing": 1000 * (unchanged + undone),
    }
    assert chisquare([counts[name] for name in expected], list(expected.values())).pvalue > 0.001


def test_each_operation_edits_as_in_the_paper(file):
    for name, variant in operations(file):
        new, gone = Counter(variant) - Counter(WORDS), Counter(WORDS) - Counter(variant)
        if name == "synonym":
            assert (new.total(), gone.total(), len(variant)) == (2, 2, 16)
        if name == "insert":
            assert (new.total(), len(variant)) == (2, 18)
        if name == "swap":
            assert sum(one != other for one, other in zip(variant, WORDS, strict=True)) in (3, 4)


def test_deletion_has_the_right_probability(file):
    left = [len(variant) for _, variant in variants(method("eda", weights={"delete": 1}), [WORDS], 3_000)]
    assert binomtest(16 * 3_000 - sum(left), 16 * 3_000, 0.1).pvalue > 0.001


def test_operations_follow_their_weights(file):
    counts = Counter(name for name, _ in operations(file, weights={"insert": 3, "synonym": 1, "swap": 0}))
    assert set(counts) == {"insert", "synonym"}
    assert binomtest(counts["insert"], 4_000, 0.75).pvalue > 0.001


@pytest.mark.parametrize("weights", [{}, {"swap": 0}, {"turn": 1}, {"swap": -1}])
def test_weights_without_a_positive_one_are_refused(weights):
    with pytest.raises(ConfigError):
        method("eda", weights=weights)


def test_at_least_one_word_is_kept():
    edits = method("eda", share=1.0, weights={"delete": 1, "swap": 1})
    assert all(variant for _, variant in variants(edits, times=50))
    deletions = method("eda", share=1.0, weights={"delete": 1})
    assert {len(variant) for _, variant in variants(deletions, [WORDS], 50)} == {1}
