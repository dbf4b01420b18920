"""Cosine regression (Reimers & Gurevych 2019, section 3): cosines of pairs match similarity scores."""

import torch
from torch import Tensor

from pipeline.losses.pairs import cosine_regression
from pipeline.objectives import OBJECTIVES, Batch, Loss, Objective


@OBJECTIVES.register("regression")
class CosineRegression(Objective):
    """Mean squared error between cosines of pairs, which are not rescaled, and scores from 0 to 1.

    For pairs without scores use `supervised`; for labels, `classification`; to score two texts that are read
    together, `sequence_regression`.
    """

    columns = ("sentence1", "sentence2", "score")
    min_rows = 1
    allows_truncation = True

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        left, right = reps
        return Loss.of(
            squared_error=cosine_regression(
                left, right, torch.tensor(batch.column("score"), device=left.device)
            )
        )
