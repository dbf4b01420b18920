"""A text with synonyms of its words put in anywhere (Wei & Zou 2019, EDA: random insertion)."""

from collections.abc import Callable
from typing import Annotated

import numpy as np
from pydantic import Field

from pipeline.augment import AUGMENTERS, Words
from pipeline.augment.synonyms import ByMeaning, Meaning
from pipeline.augment.words import amount
from pipeline.settings.augment import Share


def inserted(words: Words, times: int, meaning: Meaning, rng: np.random.Generator) -> Words:
    """The words and `times` synonyms, each of any word of the text that has one, at any place; none where no word has one."""
    longer, left = list(words), list(words)
    while times and left:
        place = int(rng.random() * len(left))
        if found := meaning(left[place]):
            at = int(rng.random() * (len(longer) + 1))
            longer[at:at] = found.drawn(rng).split()
            times -= 1
        else:
            del left[place]
    return longer


@AUGMENTERS.register("insert")
class Insert(ByMeaning):
    """The text with synonyms of some of its words, stop words apart, as further words at places that are drawn."""

    share: Share = 0.1
    """insertions as a share of the number of words, rounded; one at least"""
    times: Annotated[int, Field(ge=1)] | None = None
    """so many insertions instead"""

    def start(self) -> Callable[[Words, np.random.Generator], Words]:
        meaning = self.meaning()
        return lambda words, rng: inserted(words, amount(len(words), self.share, self.times), meaning, rng)
