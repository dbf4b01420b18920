"""Corrupt a text as a denoising auto-encoder's input (Hill, Cho & Korhonen 2016, SDAE: N(S | p_o, p_x))."""

from collections.abc import Sequence
from typing import Annotated, TypeVar

import numpy as np
from pydantic import Field

from pipeline.augment import AUGMENTERS, Edit, WordAugmenter
from pipeline.settings.augment import Proportion

Word = TypeVar("Word")  # a word, or its token id


def omit_words(
    words: Sequence[Word], probability: float, rng: np.random.Generator, span: int = 1
) -> list[Word]:
    """Delete each word with this probability, in random spans of `span` neighbouring words.

    If all words would be deleted, a random one is kept.
    """
    count = len(words)
    if count < 2:
        return list(words)
    # Each word is in `span` spans, and is deleted if any of them is. Spans are deleted independently with the
    # probability p for which 1 - (1 - p)^span is `probability`. The first spans begin before the first word.
    is_deleted = (rng.random(count + span - 1) < 1 - (1 - probability) ** (1 / span)).tolist()
    remaining = [
        word for position, word in enumerate(words) if not any(is_deleted[position : position + span])
    ]
    return remaining or [words[int(rng.random() * count)]]


def swap_bigrams(words: Sequence[Word], probability: float, rng: np.random.Generator) -> list[Word]:
    """Exchange the words of each of the pairs (0, 1), (2, 3) ... with this probability."""
    swapped = list(words)
    for pair, is_swapped in enumerate((rng.random(len(words) // 2) < probability).tolist()):
        if is_swapped:
            swapped[2 * pair], swapped[2 * pair + 1] = words[2 * pair + 1], words[2 * pair]
    return swapped


@AUGMENTERS.register("corrupt")
class Corrupt(WordAugmenter):
    """Delete each word with probability `omit`, then exchange neighbouring words with probability `swap`.

    The pairs of neighbours do not overlap.
    """

    omit: Proportion = 0.1
    """probability that a word is deleted, p_o of the paper; at least one word is kept. With omit and swap 0
    the text is unchanged (a plain auto-encoder)
    """
    swap: Proportion = 0.1
    """probability that a pair of neighbouring words is exchanged, p_x of the paper"""
    span: Annotated[int, Field(ge=1)] = 1
    """number of neighbouring words that are deleted together; each word is deleted with probability `omit`,
    whatever the span
    """

    def start(self) -> Edit:
        return lambda words, rng: swap_bigrams(omit_words(words, self.omit, rng, self.span), self.swap, rng)
