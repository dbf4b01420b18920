"""Exchange words of a text (Wei & Zou 2019, EDA: random swap)."""

from typing import Annotated

import numpy as np
from pydantic import Field

from pipeline.augment import AUGMENTERS, Edit, WordAugmenter, Words
from pipeline.augment.words import edit_count
from pipeline.settings.augment import Proportion


def swap_words(words: Words, times: int, rng: np.random.Generator) -> Words:
    """Exchange two random words `times` times; later exchanges may undo earlier ones."""
    swapped, count = list(words), len(words)
    if count < 2:
        return swapped
    for first_uniform, second_uniform in rng.random((times, 2)).tolist():
        first = int(first_uniform * count)
        second = int(second_uniform * (count - 1))
        if second >= first:  # the second position is drawn among the others
            second += 1
        swapped[first], swapped[second] = swapped[second], swapped[first]
    return swapped


@AUGMENTERS.register("swap")
class Swap(WordAugmenter):
    """The text after some exchanges of two random words."""

    share: Proportion = 0.1
    """number of exchanges as a proportion of the number of words, rounded; at least one"""
    times: Annotated[int, Field(ge=1)] | None = None
    """number of exchanges; null: by share"""

    def start(self) -> Edit:
        return lambda words, rng: swap_words(words, edit_count(len(words), self.share, self.times), rng)
