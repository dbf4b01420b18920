"""Fine-tuning on scores: STS-B in BERT (Devlin et al. 2019), the cross-encoder of SBERT (2019)."""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from pipeline.losses.pairs import score_regression
from pipeline.objectives import OBJECTIVES, Batch, Loss, PositiveFloat
from pipeline.objectives.sequence import FineTuning


@OBJECTIVES.register("sequence_regression")
class SequenceRegression(FineTuning):
    """Mean squared error of a linear layer over the encoder's vector of a text, or of a pair of texts.

    `pairs` reads sentence1 and sentence2 as one sequence, as in `sequence_classification`; without it, the
    column is text. The output is a score from 0 to `scale`: 5 as in STS-B, whatever the range of the data's
    scores (`values.score_range`). `dropout` is as in `sequence_classification`. For a vector of each text
    use `regression`.
    """

    target = "score"
    columns = ("text", "score")
    measures = ("spearman", "pearson")
    regresses = True

    def __init__(
        self,
        encoder: nn.Module,
        *,
        scale: PositiveFloat = 5.0,
        pairs: bool = False,
        dropout: Annotated[float, Field(ge=0, lt=1)] | None = None,
    ) -> None:
        super().__init__(encoder, outputs=1, pairs=pairs, dropout=dropout)
        self.scale = scale

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        predicted = self.outputs(*reps)[:, 0]
        scores = self.scale * torch.tensor(batch.column("score"), device=predicted.device)
        return Loss.of(squared_error=score_regression(predicted, scores))

    def predict(self, vectors: Tensor) -> Tensor:
        return self.outputs(vectors)[:, 0]
