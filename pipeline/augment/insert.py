"""Insert synonyms of a text's words at random positions (Wei & Zou 2019, EDA: random insertion)."""

from typing import Annotated

import numpy as np
from pydantic import Field

from pipeline.augment import AUGMENTERS, Edit, Words
from pipeline.augment.synonyms import FindSynonyms, SynonymAugmenter
from pipeline.augment.words import edit_count
from pipeline.settings.augment import Proportion


def insert_synonyms(words: Words, times: int, find_synonyms: FindSynonyms, rng: np.random.Generator) -> Words:
    """Insert `times` synonyms of random words at random positions; none if no word has a synonym."""
    edited, candidates = list(words), list(words)
    while times and candidates:
        index = int(rng.random() * len(candidates))
        if found := find_synonyms(candidates[index]):
            position = int(rng.random() * (len(edited) + 1))
            edited[position:position] = found.draw(rng).split()
            times -= 1
        else:
            del candidates[index]
    return edited


@AUGMENTERS.register("insert")
class Insert(SynonymAugmenter):
    """The text with synonyms of some of its words, stop words excepted, inserted at random positions."""

    share: Proportion = 0.1
    """number of insertions as a proportion of the number of words, rounded; at least one"""
    times: Annotated[int, Field(ge=1)] | None = None
    """number of insertions; null: by share"""

    def start(self) -> Edit:
        find_synonyms = self.load_synonyms()
        return lambda words, rng: insert_synonyms(
            words, edit_count(len(words), self.share, self.times), find_synonyms, rng
        )
