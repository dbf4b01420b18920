"""Cosine regression (Reimers & Gurevych 2019, section 3): two sentences' vectors are as near as people say the sentences are."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pipeline.losses import cosine_regression
from pipeline.objectives import OBJECTIVES, Batch, Loss, Objective, View


@OBJECTIVES.register("regression")
class CosineRegression(Objective):
    """Mean squared difference of the cosine and the score, from 0 to 1, of each pair. The cosine itself is what is compared, not its place between -1 and 1."""

    columns = ("sentence1", "sentence2", "score")
    least_rows = 1
    truncates = True

    def views(self, batch: Batch) -> Sequence[View]:
        return [View(self.encoder, batch.tokens(role)) for role in self.columns[:2]]

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        left, right = reps
        return Loss.of(
            squared_error=cosine_regression(
                left, right, torch.tensor(batch.column("score"), device=left.device)
            )
        )
