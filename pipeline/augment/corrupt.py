"""A text as a denoising auto-encoder reads it (Hill, Cho & Korhonen 2016, SDAE: N(S | p_o, p_x))."""

from collections.abc import Callable
from typing import Annotated

import numpy as np
from pydantic import Field

from pipeline.augment import AUGMENTERS, WordAugmenter, Words
from pipeline.settings.augment import Share


def omitted(words: Words, share: float, rng: np.random.Generator, span: int = 1) -> Words:
    """The words less each with probability `share`, where `span` neighbours go together; one of them, drawn, where all would go.

    A gap begins at any word, or before the first one, with the probability by which each word goes with `share` whatever the span.
    """
    count = len(words)
    if count < 2:
        return list(words)
    begins = (rng.random(count + span - 1) < 1 - (1 - share) ** (1 / span)).tolist()
    left = (
        [word for place, word in enumerate(words) if not any(begins[place : place + span])]
        if any(begins)
        else list(words)
    )
    return left or [words[int(rng.random() * count)]]


def bigrams_swapped(words: Words, share: float, rng: np.random.Generator) -> Words:
    """The words with each of the pairs (0, 1), (2, 3) ... turned round with probability `share`."""
    moved = list(words)
    for pair, turned in enumerate((rng.random(len(words) // 2) < share).tolist()):
        if turned:
            moved[2 * pair], moved[2 * pair + 1] = moved[2 * pair + 1], moved[2 * pair]
    return moved


@AUGMENTERS.register("corrupt")
class Corrupt(WordAugmenter):
    """Each word goes with probability `omit`; of what is left each pair of neighbours that does not overlap the one before changes places with probability `swap`."""

    omit: Share = 0.1
    """p_o; with 0, and `swap` 0, the text stays: a plain auto-encoder. One word stays in any case"""
    swap: Share = 0.1
    """p_x"""
    span: Annotated[int, Field(ge=1)] = 1
    """neighbouring words that go together; each word goes with probability `omit` all the same"""

    def start(self) -> Callable[[Words, np.random.Generator], Words]:
        return lambda words, rng: bigrams_swapped(omitted(words, self.omit, rng, self.span), self.swap, rng)
