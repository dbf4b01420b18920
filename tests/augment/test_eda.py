"""Each variant went through one of four operations."""

from collections import Counter

import pytest
from scipy.stats import binomtest, chisquare

from pipeline.errors import ConfigError
from tests.augment.edits import method, variants, write_thesaurus

WORDS = [
    "a",
    "big",
    "dog",
    "sees",
    "the",
    "small",
    "house",
    "near",
    "grass",
    "today",
    "while",
    "many",
    "people",
    "sleep",
    "quietly",
    "there",
]  # 16: n = 2


@pytest.fixture
def file(tmp_path) -> str:
    return str(
        write_thesaurus(
            tmp_path, {"big": "large", "dog": "hound", "small": "tiny", "house": "home", "grass": "lawn"}
        )
    )


def operation(variant: list[str]) -> str:
    """Told from the result alone."""
    new, gone = Counter(variant) - Counter(WORDS), Counter(WORDS) - Counter(variant)
    if not new and not gone:
        return "swap" if variant != WORDS else "nothing"
    if not new:
        return "delete"
    return "insert" if not gone else "synonym"


def found(file: str, times: int = 4_000, **options: object) -> list[tuple[str, list[str]]]:
    return [
        (operation(variant), variant)
        for _, variant in variants(method("eda", synonyms=file, **options), [WORDS], times)
    ]


def test_operations_are_equally_likely(file):
    counts = Counter(name for name, _ in found(file))
    still = 0.9 ** len(WORDS)  # of deletions, and one exchange in 120 is undone by the second
    expected = {
        "synonym": 1000,
        "insert": 1000,
        "swap": 1000 * (1 - 1 / 120),
        "delete": 1000 * (1 - still),
        "nothing": 1000 * (still + 1 / 120),
    }
    assert chisquare([counts[name] for name in expected], list(expected.values())).pvalue > 0.001


def test_each_operation_edits_as_in_the_paper(file):
    for name, variant in found(file):
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
    counts = Counter(name for name, _ in found(file, weights={"insert": 3, "synonym": 1, "swap": 0}))
    assert set(counts) == {"insert", "synonym"}
    assert binomtest(counts["insert"], 4_000, 0.75).pvalue > 0.001


@pytest.mark.parametrize("weights", [{}, {"swap": 0}, {"turn": 1}, {"swap": -1}])
def test_weights_without_a_positive_one_are_refused(weights):
    with pytest.raises(ConfigError):
        method("eda", weights=weights)


def test_one_word_is_kept():
    assert all(
        variant
        for _, variant in variants(method("eda", share=1.0, weights={"delete": 1, "swap": 1}), times=50)
    )
