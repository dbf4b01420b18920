"""Distillation of a cross-encoder's scores: margins (Hofstätter et al. 2020) or distributions of each row."""

from typing import Literal

import torch
from torch import Tensor, nn

from pipeline.losses.checks import at_least_float32
from pipeline.losses.contrastive import Similarity
from pipeline.losses.distillation import margin_mse, similarity_distillation
from pipeline.losses.pairs import row_cosines
from pipeline.objectives import OBJECTIVES, Batch, Loss, Objective, PositiveFloat
from pipeline.settings.training import NEGATIVES


@OBJECTIVES.register("score_distillation")
class ScoreDistillation(Objective):
    """Learn the scores that a cross-encoder gives to an anchor with its positive and its hard negatives.

    The column `scores` has a list for each row: the score of the positive, then of each hard negative, on any
    scale; `manta pairs pairs.kind=rescore` writes it. `match` "margin" is the mean squared error of the
    differences between the positive's score and the negatives' (margin-MSE); "distribution" is the KL
    divergence, in nats, from the softmax of the teacher's scores over the texts of the row. The encoder's
    scores are inner products, or cosines with `similarity` "cosine". `teacher_temperature` divides the scores
    of the teacher, and `temperature` those of the encoder in "distribution". Cosines differ by 2 at most:
    with them, "margin" needs a `teacher_temperature` that makes the teacher's margins as small. A row is not
    compared with other rows. To learn from the vectors of another encoder use `distillation`; for graded
    scores of pairs, `regression`.
    """

    columns = ("anchor", "positive", "negative", "scores")
    optional = NEGATIVES[1:]
    has_positive_pairs = True
    min_rows = 1
    allows_truncation = True

    def __init__(
        self,
        encoder: nn.Module,
        *,
        match: Literal["margin", "distribution"] = "margin",
        similarity: Similarity = "dot",
        temperature: PositiveFloat = 1.0,
        teacher_temperature: PositiveFloat = 1.0,
    ) -> None:
        super().__init__(encoder)
        self.match, self.similarity = match, similarity
        self.temperature, self.teacher_temperature = temperature, teacher_temperature

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        anchors, *others = reps
        student = torch.stack([self._scores(anchors, each) for each in others], dim=1)
        teacher = torch.tensor(batch.column("scores"), device=student.device)[:, : len(others)]
        missing, teacher = teacher.isnan(), teacher.nan_to_num() / self.teacher_temperature
        if self.match == "margin":
            return Loss.of(margin_mse=margin_mse(student, teacher, missing=missing))
        return Loss.of(
            divergence=similarity_distillation(
                student,
                teacher * self.temperature,  # the loss divides both by it
                temperature=self.temperature,
                excluded=missing,
            )
        )

    def _scores(self, anchors: Tensor, others: Tensor) -> Tensor:
        """Return the (n,) scores of each anchor with the text of its row."""
        if self.similarity == "cosine":
            return row_cosines(anchors, others)
        return (at_least_float32(anchors) * at_least_float32(others)).sum(dim=1)
