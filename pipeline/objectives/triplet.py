"""Triplet loss (Reimers & Gurevych 2019, section 3): positives closer than negatives, by a margin."""

from torch import Tensor, nn

from pipeline.losses.pairs import triplet
from pipeline.objectives import OBJECTIVES, Batch, Loss, Objective, PositiveFloat


@OBJECTIVES.register("triplet")
class Triplet(Objective):
    """Mean of max(|a - p| - |a - n| + margin, 0), Euclidean, not squared; no negatives from other rows.

    `supervised` reads the same columns, and compares each anchor with all rows of the batch.
    """

    columns = ("anchor", "positive", "negative")
    has_positive_pairs = True
    min_rows = 1
    allows_truncation = True

    def __init__(self, encoder: nn.Module, *, margin: PositiveFloat = 1.0) -> None:
        super().__init__(encoder)
        self.margin = margin

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        return Loss.of(triplet=triplet(*reps, margin=self.margin))
