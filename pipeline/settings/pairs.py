"""Settings of training rows that are built from labelled, grouped or running text."""

import re
from typing import Annotated, Self

from pydantic import Field, JsonValue, field_validator, model_validator

from pipeline.config import Settings
from pipeline.settings.training import SourceSettings

_VALID_NAME = re.compile(r"[^\W_][\w.-]*")


class PairsSettings(Settings):
    """Training rows that `manta pairs` builds."""

    root: str = "pairs"
    """a directory or URI below which every result has a folder"""
    name: str | None = None
    """name of the folder; null: made from the kind and a digest of the settings and files, so that a repeated
    command continues the same work"""
    kind: str | None = None
    """kind of rows, registered in pipeline/text/pairs. nli: triples of premise, entailed and contradicting
    hypothesis; groups: pairs of two texts of a group; sections: triples of two texts of a section and one of
    another section of the same document; neighbours: a sentence with the ones before and after it. rescore:
    rows of anchor, positive and hard negatives, with the scores of the cross-encoder encoder.path"""
    options: dict[str, JsonValue] = {}
    """options of the kind, described in its class"""
    data: SourceSettings | None = None
    """the files to read: a plain URI or {uri, columns, values}. Rows that lack one of the texts are left
    out"""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """seed of all random choices"""
    test: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """proportion of the premises, groups or documents that are set aside: their rows become a test set, and
    none of them a training row"""

    @field_validator("name")
    @classmethod
    def _name_is_a_folder(cls, value: str | None) -> str | None:
        if value is not None and not _VALID_NAME.fullmatch(value):
            raise ValueError(
                f"a name of letters, digits and . _ - that begins with a letter or digit, not {value!r}"
            )
        return value

    @model_validator(mode="after")
    def _data_has_no_weight(self) -> Self:
        if self.data is not None and self.data.weight != 1:
            raise ValueError("data without a weight, which only training rows of several sources have")
        return self
