"""Corrupt a text as a denoising auto-encoder's input (Hill, Cho & Korhonen 2016, SDAE: N(S | p_o, p_x))."""

from typing import Annotated

import numpy as np
from pydantic import Field

from pipeline.augment import AUGMENTERS, Edit, WordAugmenter, Words
from pipeline.settings.augment import Share


def omit_words(words: Words, share: float, rng: np.random.Generator, span: int = 1) -> Words:
    """Delete each word with probability `share`; `span` neighbours are deleted together.

    If all words would be deleted, a random one is kept. A gap starts at any word, or before the first one,
    with the probability that makes each word's own probability `share` for every span.
    """
    count = len(words)
    if count < 2:
        return list(words)
    begins = (rng.random(count + span - 1) < 1 - (1 - share) ** (1 / span)).tolist()
    kept = [word for position, word in enumerate(words) if not any(begins[position : position + span])]
    return kept or [words[int(rng.random() * count)]]


def swap_bigrams(words: Words, share: float, rng: np.random.Generator) -> Words:
    """Exchange the words of each of the pairs (0, 1), (2, 3) ... with probability `share`."""
    moved = list(words)
    for pair, turned in enumerate((rng.random(len(words) // 2) < share).tolist()):
        if turned:
            moved[2 * pair], moved[2 * pair + 1] = moved[2 * pair + 1], moved[2 * pair]
    return moved


@AUGMENTERS.register("corrupt")
class Corrupt(WordAugmenter):
    """Delete each word with probability `omit`, then exchange neighbouring words with probability `swap`.

    The pairs of neighbours do not overlap.
    """

    omit: Share = 0.1
    """p_o; at least one word is kept. With omit and swap 0 the text is unchanged (a plain auto-encoder)"""
    swap: Share = 0.1
    """p_x"""
    span: Annotated[int, Field(ge=1)] = 1
    """neighbouring words that are deleted together; each word's probability is `omit` for every span"""

    def start(self) -> Edit:
        return lambda words, rng: swap_bigrams(omit_words(words, self.omit, rng, self.span), self.swap, rng)
