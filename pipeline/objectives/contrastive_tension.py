"""Contrastive tension (Carlsson et al. 2021): two encoders that began as one learn to give equal texts large inner products, and other texts small ones."""

import copy
from collections.abc import Sequence
from typing import Annotated, Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from pipeline.losses import contrastive_tension
from pipeline.models.trainable.encoder import TrainableEncoder
from pipeline.objectives import OBJECTIVES, Batch, Loss, Objective, Product, View


@OBJECTIVES.register("contrastive_tension")
class ContrastiveTension(Objective):
    """Binary cross-entropy of raw inner products, without a temperature, f1(x) . f2(x') being the logit that x and x' are one text.

    Every row of a batch makes one pair, so 16 rows are 16 pairs. Of 1 + `negatives` rows that follow each other the first is the positive (x, x); each other one is the
    negative (x, x') with the text x' of the next negative row, the last with that of the first. So no two pairs share an anchor or a partner, and each encoder sees each
    text once. (The published program shares no anchors either; but texts of its negatives are in no second pair, so that it reads 15 texts for 8 pairs.) Rows of all
    ranks are counted together. A pair of rows that have one text is a positive where that is told.

    Inner products of a pretrained encoder are in the hundreds, and so are the first losses. reduction: the published learning rates go with the mean over the pairs.
    inference: which encoder is the product: by convention the second; or the one that is better on dev, measurement by measurement.
    The two differ by their roles alone, so the paper trains without dropout (setting train.dropout).
    """

    columns = ("text",)
    positives = True
    truncates = True
    chosen: Tensor
    least_rows = 3  # of a positive and one negative the negative would have no partner but itself

    def __init__(
        self,
        encoder: nn.Module,
        *,
        negatives: Annotated[int, Field(ge=1)] = 7,
        reduction: Literal["mean", "sum"] = "mean",
        inference: Literal["first", "second", "best"] = "second",
    ) -> None:
        super().__init__(encoder)
        self.twin = copy.deepcopy(encoder)
        self.negatives, self.reduction, self.inference = negatives, reduction, inference
        self.register_buffer("chosen", torch.zeros((), dtype=torch.int64))

    def views(self, batch: Batch) -> Sequence[View]:
        tokens = batch.tokens("text")
        return View(self.encoder, tokens), View(self.twin, tokens)

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        first, second = reps
        candidates = batch.peers.gather(second)
        own = torch.arange(len(batch), device=first.device)
        partners = self.partners(len(candidates)).to(first.device)[batch.first + own]
        equal = partners == batch.first + own
        if (alike := batch.excluded("text", first.device)) is not None:
            equal = equal | alike[own, partners]
        value = contrastive_tension(first, candidates[partners], equal, reduction=self.reduction)
        ranks = len(candidates) // len(batch)  # losses are averaged over ranks, which is not what a sum wants
        return Loss.of(tension=value * ranks if self.reduction == "sum" else value)

    def partners(self, count: int) -> Tensor:
        """(count,) int64: the row whose text each of `count` rows, of all ranks, is paired with."""
        rows = torch.arange(count)
        negative = rows % (1 + self.negatives) != 0
        partners = rows.clone()
        partners[negative] = rows[negative].roll(-1)
        return partners

    def doubts(self) -> list[str]:
        folder = cast(TrainableEncoder, self.encoder).folder
        return (
            [
                "contrastive_tension: inner products of vectors of length one stay between -1 and 1; set encoder.normalize to false"
            ]
            if folder.normalize
            else []
        )

    def product(self) -> Product:
        return self.rivals()[int(self.chosen)]

    def rivals(self) -> tuple[Product, ...]:
        places = {"first": (self.encoder,), "second": (self.twin,), "best": (self.twin, self.encoder)}
        return tuple(Product(cast(TrainableEncoder, encoder)) for encoder in places[self.inference])

    def choose(self, place: int) -> None:
        self.chosen.fill_(place)
