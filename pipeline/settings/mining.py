"""Settings of the mining of hard negatives before a training."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pipeline.config import Settings


class MineSettings(Settings):
    """Mining of hard negatives for (anchor, positive) rows.

    Negatives are near neighbours of the anchor among all positives, by the encoder that training starts from.
    """

    enabled: bool = False
    """whether to mine negatives before the first step; they replace the negatives of the files"""
    neighbours: Annotated[int, Field(ge=1)] = 50
    """number of nearest neighbours of each anchor to consider, without its known positives"""
    skip: Annotated[int, Field(ge=0)] = 0
    """number of nearest neighbours to skip, because they are the most likely to be positives too"""
    margin: float | None = 0.05
    """smallest difference between the positive's cosine with the anchor and the negative's; null: no limit"""
    most: Annotated[float, Field(gt=-1, le=1)] | None = None
    """highest cosine of a negative with the anchor; null: no limit"""
    negatives: Annotated[int, Field(ge=1)] = 1
    """negatives of each pair; each makes a row of its own"""
    pick: Literal["first", "random"] = "first"
    """choice among the remaining neighbours. first: the nearest ones; random: random ones"""

    @model_validator(mode="after")
    def _some_neighbours_remain(self) -> Self:
        if self.skip >= self.neighbours:
            raise ValueError(
                f"skip to be below neighbours: skipping {self.skip} of {self.neighbours} leaves none"
            )
        return self
