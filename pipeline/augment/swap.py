"""Exchange words of a text (Wei & Zou 2019, EDA: random swap)."""

from typing import Annotated

import numpy as np
from pydantic import Field

from pipeline.augment import AUGMENTERS, Edit, WordAugmenter, Words
from pipeline.augment.words import edit_count
from pipeline.settings.augment import Share


def swap_words(words: Words, times: int, rng: np.random.Generator) -> Words:
    """Exchange two random words `times` times; later exchanges may undo earlier ones."""
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
    """The same words after some exchanges of two random words."""

    share: Share = 0.1
    """number of exchanges as a proportion of the number of words, rounded; at least one"""
    times: Annotated[int, Field(ge=1)] | None = None
    """number of exchanges; null: by share"""

    def start(self) -> Edit:
        return lambda words, rng: swap_words(words, edit_count(len(words), self.share, self.times), rng)
