"""R-Drop (Liang et al. 2021): two passes with different dropout must predict the same class for a pair."""

from collections.abc import Sequence
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from pipeline.losses.classification import SBERT_FEATURES, Feature, classification
from pipeline.losses.divergence import symmetric_divergence
from pipeline.objectives import OBJECTIVES, Batch, Loss, PositiveFloat, View
from pipeline.objectives.classification import Classification


@OBJECTIVES.register("r_drop")
class RDrop(Classification):
    """Cross-entropies of two passes, plus alpha times the symmetric divergence of their classes (eq. 4).

    The classifier and its options are those of `classification`. The paper's alpha is 5 for translation and
    0.1 to 1 for GLUE. Its published program averages the two cross-entropies, but this objective adds them,
    so twice the program's alpha has the same effect here. The encoder needs dropout.
    """

    def __init__(
        self,
        encoder: nn.Module,
        *,
        alpha: PositiveFloat = 1.0,
        classes: Annotated[int, Field(ge=2)] = 3,
        features: tuple[Feature, ...] = SBERT_FEATURES,
        hidden: Annotated[int, Field(ge=1)] | None = None,
        nonlinear: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__(
            encoder, classes=classes, features=features, hidden=hidden, nonlinear=nonlinear, bias=bias
        )
        self.alpha = alpha

    def views(self, batch: Batch) -> Sequence[View]:
        return 2 * tuple(super().views(batch))

    def warnings(self) -> list[str]:
        if self.encoder.backbone.has_dropout:
            return []
        return [
            "r_drop: the encoder has no dropout, so that both passes are equal, and the result is that of "
            "classification at twice the cost; set train.dropout"
        ]

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        first, second = self.logits(*reps[:2]), self.logits(*reps[2:])
        labels = torch.tensor(batch.column("label"), device=first.device)
        return Loss.of(
            cross_entropy=classification(first, labels) + classification(second, labels),
            divergence=self.alpha * symmetric_divergence(first, second),
        )
