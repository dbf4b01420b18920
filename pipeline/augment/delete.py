"""A text without some of its words (Gao et al. 2021, SimCSE, table 1: word deletion, delete one word)."""

from collections.abc import Callable
from typing import Annotated

import numpy as np
from pydantic import Field

from pipeline.augment import AUGMENTERS, WordAugmenter, Words
from pipeline.augment.words import amount, places
from pipeline.settings.augment import Share


@AUGMENTERS.register("delete")
class Delete(WordAugmenter):
    """All words but some, which are drawn; one word stays whatever is asked for."""

    share: Share = 0.1
    """of the words that go, rounded; one at least"""
    words: Annotated[int, Field(ge=1)] | None = None
    """so many go instead; 1: exactly one"""

    def start(self) -> Callable[[Words, np.random.Generator], Words]:
        return self._shortened

    def _shortened(self, words: Words, rng: np.random.Generator) -> Words:
        left = list(words)
        for place in sorted(
            places(min(amount(len(words), self.share, self.words), len(words) - 1), len(words), rng),
            reverse=True,
        ):
            del left[place]
        return left
