"""Fine-tuning on classes (BERT, Devlin et al. 2019; the third stage of CERT, Fang et al. 2020)."""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from pipeline.losses.classification import classification
from pipeline.objectives import OBJECTIVES, Batch, Loss
from pipeline.objectives.sequence import FineTuning


@OBJECTIVES.register("sequence_classification")
class SequenceClassification(FineTuning):
    """Cross-entropy of a linear layer over the encoder's vector of a text, or of a pair of texts.

    `classes` is the number of labels. `pairs` reads sentence1 and sentence2 as one sequence, [CLS] a [SEP] b
    [SEP] with token types 0 and 1, so that the encoder becomes a cross-encoder; without it, the column is
    text. `dropout` is the rate on the vectors in the training, by default the rate on the encoder's hidden
    states: 0.1 in BERT. For scores use `sequence_regression`; for a vector of each text, `classification`.
    """

    target = "label"
    columns = ("text", "label")
    measures = ("accuracy", "f1", "matthews")

    def __init__(
        self,
        encoder: nn.Module,
        *,
        classes: Annotated[int, Field(ge=2)] = 3,
        pairs: bool = False,
        dropout: Annotated[float, Field(ge=0, lt=1)] | None = None,
    ) -> None:
        super().__init__(encoder, outputs=classes, pairs=pairs, dropout=dropout)

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        logits = self.outputs(*reps)
        return Loss.of(
            cross_entropy=classification(logits, torch.tensor(batch.column("label"), device=logits.device))
        )

    def predict(self, vectors: Tensor) -> Tensor:
        return self.outputs(vectors).argmax(1)
