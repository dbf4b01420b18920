"""Replace words by synonyms (Gao et al. 2021, SimCSE, table 1: synonym replacement; Wei & Zou 2019, EDA)."""

from typing import Annotated

import numpy as np
from pydantic import Field

from pipeline.augment import AUGMENTERS, Edit, Words
from pipeline.augment.synonyms import FindSynonyms, SynonymAugmenter
from pipeline.augment.words import cased_like, draw_positions, edit_count
from pipeline.settings.augment import Proportion


def replace_words(words: Words, count: int, find_synonyms: FindSynonyms, rng: np.random.Generator) -> Words:
    """Replace `count` of the words that have synonyms, or all of them if there are fewer.

    Punctuation around a word and its capitals are kept.
    """
    replacements: dict[int, str] = {}
    for position in draw_positions(len(words), len(words), rng):
        if len(replacements) == count:
            break
        if found := find_synonyms(words[position]):
            replacements[position] = f"{found.before}{cased_like(found.word, found.draw(rng))}{found.after}"
    edited: Words = []
    for position, original in enumerate(words):
        # a synonym may consist of several words
        edited += replacements[position].split() if position in replacements else [original]
    return edited


@AUGMENTERS.register("synonym")
class Synonym(SynonymAugmenter):
    """The text with some words, stop words excepted, replaced by synonyms; unchanged if no word has one."""

    words: Annotated[int, Field(ge=1)] | None = 1
    """number of words that are replaced; null: by share"""
    share: Proportion = 0.1
    """proportion of the words that are replaced if `words` is null, rounded; at least one"""

    def start(self) -> Edit:
        find_synonyms = self.load_synonyms()
        return lambda words, rng: replace_words(
            words, edit_count(len(words), self.share, self.words), find_synonyms, rng
        )
