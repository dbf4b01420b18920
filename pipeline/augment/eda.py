"""Easy data augmentation: one of four edits of a text's words (Wei & Zou 2019, EDA)."""

from bisect import bisect
from collections.abc import Callable
from itertools import accumulate
from typing import Annotated, Literal, get_args

import numpy as np
from pydantic import Field, field_validator

from pipeline.augment import AUGMENTERS, Edit, Words
from pipeline.augment.corrupt import omit_words
from pipeline.augment.insert import insert_synonyms
from pipeline.augment.swap import swap_words
from pipeline.augment.synonym import replace_words
from pipeline.augment.synonyms import SynonymAugmenter
from pipeline.augment.words import edit_count
from pipeline.settings.augment import Proportion

Operation = Literal["synonym", "insert", "swap", "delete"]
OPERATIONS: tuple[Operation, ...] = get_args(Operation)


@AUGMENTERS.register("eda")
class EDA(SynonymAugmenter):
    """Apply one of four operations to a text, drawn at random for each variant.

    With n = max(1, round(share * words)), the operation replaces n words by synonyms, inserts n synonyms,
    exchanges two words n times, or deletes each word with probability `share`, but keeps at least one. (The
    paper applies each of the four operations to every text instead.)
    """

    share: Proportion = 0.1
    """alpha of the paper"""
    weights: dict[Operation, Annotated[float, Field(ge=0, allow_inf_nan=False)]] = dict.fromkeys(
        OPERATIONS, 1.0
    )
    """relative frequency of each operation; an operation that is not listed is never drawn"""

    @field_validator("weights")
    @classmethod
    def _one_weight_is_positive(cls, value: dict[Operation, float]) -> dict[Operation, float]:
        if not any(value.values()):
            raise ValueError(f"a weight above 0 for at least one of {', '.join(OPERATIONS)}")
        return value

    @property
    def needs_synonyms(self) -> bool:
        return any(self.weights.get(name) for name in ("synonym", "insert"))

    def start(self) -> Edit:
        find_synonyms, share = self.load_synonyms(), self.share
        edits: dict[Operation, Callable[[Words, int, np.random.Generator], Words]] = {
            "synonym": lambda words, count, rng: replace_words(words, count, find_synonyms, rng),
            "insert": lambda words, count, rng: insert_synonyms(words, count, find_synonyms, rng),
            "swap": swap_words,
            "delete": lambda words, _, rng: omit_words(words, share, rng),
        }
        possible = [name for name in OPERATIONS if self.weights.get(name)]
        cumulated_weights = list(accumulate(self.weights[name] for name in possible))

        def edit(words: Words, rng: np.random.Generator) -> Words:
            operation = possible[bisect(cumulated_weights[:-1], rng.random() * cumulated_weights[-1])]
            return edits[operation](words, edit_count(len(words), share, None), rng)

        return edit
