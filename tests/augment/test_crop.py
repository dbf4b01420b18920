"""A crop is a span of its text, and all spans are equally likely."""

from collections import Counter

import pytest
from scipy.stats import chisquare

from tests.augment.edits import SENTENCES, method, variants


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.9, 1.0])
def test_crop_keeps_a_span_of_the_right_length(share):
    for words, variant in variants(method("crop", share=share)):
        assert len(variant) == max(1, round((1 - share) * len(words)))
        assert any(words[first : first + len(variant)] == variant for first in range(len(words)))


def test_every_span_is_equally_likely():
    words = [str(number) for number in range(10)]
    found = Counter(variant[0] for _, variant in variants(method("crop", share=0.5), [words], 6_000))
    assert sorted(found) == [str(first) for first in range(6)]
    assert chisquare(list(found.values())).pvalue > 0.001


def test_a_crop_of_zero_keeps_the_text():
    assert all(variant == words for words, variant in variants(method("crop", share=0), SENTENCES))
