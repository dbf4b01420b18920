"""Delete words of a text (Gao et al. 2021, SimCSE, table 1: word deletion, delete one word)."""

from typing import Annotated

import numpy as np
from pydantic import Field

from pipeline.augment import AUGMENTERS, Edit, WordAugmenter, Words
from pipeline.augment.words import draw_positions, edit_count
from pipeline.settings.augment import Proportion


@AUGMENTERS.register("delete")
class Delete(WordAugmenter):
    """The text without some random words; at least one word is kept."""

    share: Proportion = 0.1
    """proportion of the words that are deleted, rounded; at least one"""
    words: Annotated[int, Field(ge=1)] | None = None
    """number of words that are deleted; null: by share"""

    def start(self) -> Edit:
        return self._delete_words

    def _delete_words(self, words: Words, rng: np.random.Generator) -> Words:
        count = min(edit_count(len(words), self.share, self.words), len(words) - 1)
        deleted = set(draw_positions(count, len(words), rng))
        return [word for position, word in enumerate(words) if position not in deleted]
