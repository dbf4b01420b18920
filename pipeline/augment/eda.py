"""Easy data augmentation: one of four edits of a text's words (Wei & Zou 2019, EDA)."""

from collections.abc import Callable
from itertools import accumulate
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, field_validator

from pipeline.augment import AUGMENTERS, Words
from pipeline.augment.corrupt import omitted
from pipeline.augment.insert import inserted
from pipeline.augment.swap import swapped
from pipeline.augment.synonym import replaced
from pipeline.augment.synonyms import ByMeaning
from pipeline.augment.words import amount
from pipeline.settings.augment import Share

Operation = Literal["synonym", "insert", "swap", "delete"]
OPERATIONS: tuple[Operation, ...] = ("synonym", "insert", "swap", "delete")


@AUGMENTERS.register("eda")
class EDA(ByMeaning):
    """The text after one operation, drawn for each variant: n words replaced by synonyms, n synonyms put in, n exchanges of two words, or each word left out with
    probability `share`, where n = max(1, round(share * words)) and one word stays in any case. The paper makes variants by each of the four.
    """

    share: Share = 0.1
    """alpha of the paper"""
    weights: dict[Operation, Annotated[float, Field(ge=0, allow_inf_nan=False)]] = {
        "synonym": 1.0,
        "insert": 1.0,
        "swap": 1.0,
        "delete": 1.0,
    }
    """how often each operation is drawn, in relation to the others; one that is not named never is"""

    @field_validator("weights")
    @classmethod
    def _something_is_drawn(cls, value: dict[Operation, float]) -> dict[Operation, float]:
        if not any(value.values()):
            raise ValueError(f"a weight above 0 for at least one of {', '.join(OPERATIONS)}")
        return value

    @property
    def needs_synonyms(self) -> bool:
        return any(self.weights.get(name) for name in ("synonym", "insert"))

    def start(self) -> Callable[[Words, np.random.Generator], Words]:
        meaning, share = self.meaning(), self.share
        edits: dict[Operation, Callable[[Words, np.random.Generator], Words]] = {
            "synonym": lambda words, rng: replaced(words, amount(len(words), share, None), meaning, rng),
            "insert": lambda words, rng: inserted(words, amount(len(words), share, None), meaning, rng),
            "swap": lambda words, rng: swapped(words, amount(len(words), share, None), rng),
            "delete": lambda words, rng: omitted(words, share, rng),
        }
        drawn = [(edits[name], weight) for name in OPERATIONS if (weight := self.weights.get(name))]
        bounds = list(accumulate(weight for _, weight in drawn))

        def edited(words: Words, rng: np.random.Generator) -> Words:
            value = rng.random() * bounds[-1]
            place = sum(value >= bound for bound in bounds[:-1])
            return drawn[place][0](words, rng)

        return edited
