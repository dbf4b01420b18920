"""A text with words that changed places (Wei & Zou 2019, EDA: random swap)."""

from collections.abc import Callable
from typing import Annotated

import numpy as np
from pydantic import Field

from pipeline.augment import AUGMENTERS, WordAugmenter, Words
from pipeline.augment.words import amount
from pipeline.settings.augment import Share


def swapped(words: Words, times: int, rng: np.random.Generator) -> Words:
    """The words after `times` exchanges of two, whichever; later ones may undo earlier ones."""
    moved, count = list(words), len(words)
    if count < 2:
        return moved
    for first, second in rng.random((times, 2)).tolist():
        one, other = int(first * count), int(second * (count - 1))
        other += other >= one
        moved[one], moved[other] = moved[other], moved[one]
    return moved


@AUGMENTERS.register("swap")
class Swap(WordAugmenter):
    """The same words after some exchanges of two words, wherever they stand."""

    share: Share = 0.1
    """exchanges as a share of the number of words, rounded; one at least"""
    times: Annotated[int, Field(ge=1)] | None = None
    """so many exchanges instead"""

    def start(self) -> Callable[[Words, np.random.Generator], Words]:
        return lambda words, rng: swapped(words, amount(len(words), self.share, self.times), rng)
