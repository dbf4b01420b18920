"""Easy data augmentation: one of four edits of a text's words (Wei & Zou 2019, EDA)."""

from collections.abc import Callable
from itertools import accumulate
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, field_validator

from pipeline.augment import AUGMENTERS, Words
from pipeline.augment.corrupt import omit_words
from pipeline.augment.insert import insert_synonyms
from pipeline.augment.swap import swap_words
from pipeline.augment.synonym import replace_words
from pipeline.augment.synonyms import SynonymAugmenter
from pipeline.augment.words import edit_count
from pipeline.settings.augment import Share

Operation = Literal["synonym", "insert", "swap", "delete"]
OPERATIONS: tuple[Operation, ...] = ("synonym", "insert", "swap", "delete")


@AUGMENTERS.register("eda")
class EDA(SynonymAugmenter):
    """The text after one operation, which is drawn for each variant.

    With n = max(1, round(share * words)), the operation replaces n words by synonyms, inserts n synonyms,
    exchanges two words n times, or deletes each word with probability `share`. At least one word is kept. The
    paper makes variants by each of the four.
    """

    share: Share = 0.1
    """alpha of the paper"""
    weights: dict[Operation, Annotated[float, Field(ge=0, allow_inf_nan=False)]] = {
        "synonym": 1.0,
        "insert": 1.0,
        "swap": 1.0,
        "delete": 1.0,
    }
    """how often each operation is drawn, relative to the others; an operation without a weight is never
    drawn
    """

    @field_validator("weights")
    @classmethod
    def _one_weight_is_positive(cls, value: dict[Operation, float]) -> dict[Operation, float]:
        if not any(value.values()):
            raise ValueError(f"a weight above 0 for at least one of {', '.join(OPERATIONS)}")
        return value

    @property
    def needs_synonyms(self) -> bool:
        return any(self.weights.get(name) for name in ("synonym", "insert"))

    def start(self) -> Callable[[Words, np.random.Generator], Words]:
        find_synonyms, share = self.find_synonyms(), self.share
        edits: dict[Operation, Callable[[Words, np.random.Generator], Words]] = {
            "synonym": lambda words, rng: replace_words(
                words, edit_count(len(words), share, None), find_synonyms, rng
            ),
            "insert": lambda words, rng: insert_synonyms(
                words, edit_count(len(words), share, None), find_synonyms, rng
            ),
            "swap": lambda words, rng: swap_words(words, edit_count(len(words), share, None), rng),
            "delete": lambda words, rng: omit_words(words, share, rng),
        }
        drawn = [(edits[name], weight) for name in OPERATIONS if (weight := self.weights.get(name))]
        bounds = list(accumulate(weight for _, weight in drawn))

        def edited(words: Words, rng: np.random.Generator) -> Words:
            value = rng.random() * bounds[-1]
            operation = sum(value >= bound for bound in bounds[:-1])
            return drawn[operation][0](words, rng)

        return edited
