"""A text with words replaced by synonyms (Gao et al. 2021, SimCSE, table 1: synonym replacement; Wei & Zou 2019, EDA)."""

from collections.abc import Callable
from typing import Annotated

import numpy as np
from pydantic import Field

from pipeline.augment import AUGMENTERS, Words
from pipeline.augment.synonyms import ByMeaning, Meaning
from pipeline.augment.words import amount, cased_like, places
from pipeline.settings.augment import Share


def replaced(words: Words, count: int, meaning: Meaning, rng: np.random.Generator) -> Words:
    """The words with `count` of those that have synonyms replaced by one of these, as many as there are; signs around a word and its capitals stay."""
    spelled: dict[int, str] = {}
    for place in places(len(words), len(words), rng):
        if len(spelled) == count:
            break
        if found := meaning(words[place]):
            spelled[place] = f"{found.before}{cased_like(found.word, found.drawn(rng))}{found.behind}"
    return [
        part
        for place, word in enumerate(words)
        for part in (spelled[place].split() if place in spelled else (word,))
    ]


@AUGMENTERS.register("synonym")
class Synonym(ByMeaning):
    """The text with some words that are no stop words replaced by synonyms; as it was where none has one."""

    words: Annotated[int, Field(ge=1)] | None = 1
    """that are replaced; null: by"""
    share: Share = 0.1
    """of the words, rounded; one at least"""

    def start(self) -> Callable[[Words, np.random.Generator], Words]:
        meaning = self.meaning()
        return lambda words, rng: replaced(words, amount(len(words), self.share, self.words), meaning, rng)
