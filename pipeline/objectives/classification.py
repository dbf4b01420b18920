"""Classify sentence pairs by their vectors: SBERT (Reimers & Gurevych 2019), InferSent (2017)."""

from itertools import pairwise
from typing import Annotated, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from pipeline.losses.classification import FEATURES, SBERT_FEATURES, Feature, classification, pair_features
from pipeline.models.layers.post_pooling import draw_weights
from pipeline.objectives import OBJECTIVES, Batch, ClassifiesPairs, Loss


@OBJECTIVES.register("classification")
class Classification(ClassifiesPairs):
    """Cross-entropy of a classifier over features of the two vectors of a pair: u, v, |u - v|, u * v.

    The default is the classifier of SBERT: one linear layer over (u, v, |u - v|). InferSent's classifier uses
    all four features and has a `hidden` layer of 512, without an activation as in its published program, or
    with tanh if `nonlinear`. `classes` is the number of labels. `bias` gives every layer a bias; some
    published programs have none. Inference does not use the classifier. `r_drop` also requires two
    passes to agree; `sequence_classification` reads both texts together; `supervised` uses such data as
    triples.
    """

    columns = ("premise", "hypothesis", "label")
    min_rows = 1

    def __init__(
        self,
        encoder: nn.Module,
        *,
        classes: Annotated[int, Field(ge=2)] = 3,
        features: tuple[Feature, ...] = SBERT_FEATURES,
        hidden: Annotated[int, Field(ge=1)] | None = None,
        nonlinear: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__(encoder)
        self.features = features
        width = sum(name in features for name in FEATURES) * self.dim
        widths = [width, classes] if hidden is None else [width, hidden, classes]
        first, *rest = [
            draw_weights(nn.Linear(inputs, outputs, bias)) for inputs, outputs in pairwise(widths)
        ]
        activation = [nn.Tanh()] if nonlinear else []
        self.classifier = nn.Sequential(first, *activation, *rest) if rest else first

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        logits = self.logits(*reps)
        return Loss.of(
            cross_entropy=classification(logits, torch.tensor(batch.column("label"), device=logits.device))
        )

    def predict_classes(self, left: Tensor, right: Tensor) -> Tensor:
        return self.logits(left, right).argmax(1)

    def logits(self, premises: Tensor, hypotheses: Tensor) -> Tensor:
        """Compute (n, classes) logits of the vectors (n, dim) of n pairs."""
        return cast(Tensor, self.classifier(pair_features(premises, hypotheses, self.features)))
