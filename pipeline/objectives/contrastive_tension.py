"""Contrastive tension (Carlsson et al. 2021): two encoders learn whether they read the same text."""

import copy
from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from pipeline.losses import contrastive_tension
from pipeline.objectives import OBJECTIVES, Batch, Loss, Objective, Product, View


@OBJECTIVES.register("contrastive_tension")
class ContrastiveTension(Objective):
    """Binary cross-entropy, with the raw inner product f1(x) . f2(x') as logit, of whether x equals x'.

    The two encoders start with equal weights. Every row of a batch makes one pair: 16 rows are 16 pairs. Of 1
    + `negatives` consecutive rows the first is the positive (x, x). Each other row is a negative (x, x') with
    the text of the next negative row; the last one takes the text of the first. So no two pairs share a text
    on the same side, and each encoder reads each text once. (In the published program texts of negatives are
    in no second pair, so that it reads 15 texts for 8 pairs.) Rows of all ranks are counted together. A pair
    of rows with equal texts is a positive if this is known.

    Inner products of a pretrained encoder are in the hundreds, and so are the first losses. `reduction`: the
    published learning rates go with the mean over the pairs. `inference`: the encoder to keep: by convention
    the second; "best" is the better one on dev at each measurement. The paper trains without dropout (setting
    train.dropout).
    """

    columns = ("text",)
    has_positive_pairs = True
    allows_truncation = True
    chosen: Tensor
    min_rows = 3  # with two rows the negative would be paired with itself

    def __init__(
        self,
        encoder: nn.Module,
        *,
        negatives: Annotated[int, Field(ge=1)] = 7,
        reduction: Literal["mean", "sum"] = "mean",
        inference: Literal["first", "second", "best"] = "second",
    ) -> None:
        super().__init__(encoder)
        self.twin = copy.deepcopy(self.encoder)
        self.negatives, self.reduction, self.inference = negatives, reduction, inference
        self.register_buffer("chosen", torch.zeros((), dtype=torch.int64))

    def views(self, batch: Batch) -> Sequence[View]:
        tokens = batch.tokens("text")
        return View(self.encoder, tokens), View(self.twin, tokens)

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        first, second = reps
        candidates = batch.peers.gather(second)
        own = torch.arange(len(batch), device=first.device)
        partners = self.partners(len(candidates)).to(first.device)[batch.offset + own]
        equal = partners == batch.offset + own
        if (alike := batch.excluded("text", first.device)) is not None:
            equal = equal | alike[own, partners]
        value = contrastive_tension(first, candidates[partners], equal, reduction=self.reduction)
        ranks = len(candidates) // len(batch)  # undoes the mean over ranks for a sum
        return Loss.of(tension=value * ranks if self.reduction == "sum" else value)

    def partners(self, count: int) -> Tensor:
        """Return (count,) int64: the row whose text each of the `count` rows of all ranks is paired with."""
        rows = torch.arange(count)
        negative = rows % (1 + self.negatives) != 0
        partners = rows.clone()
        partners[negative] = rows[negative].roll(-1)
        return partners

    def warnings(self) -> list[str]:
        if not self.encoder.folder.normalize:
            return []
        return [
            "contrastive_tension: inner products of unit vectors are between -1 and 1; "
            "set encoder.normalize to false"
        ]

    def product(self) -> Product:
        return self.candidates()[int(self.chosen)]

    def candidates(self) -> tuple[Product, ...]:
        kept = {"first": (self.encoder,), "second": (self.twin,), "best": (self.twin, self.encoder)}
        return tuple(Product(encoder) for encoder in kept[self.inference])

    def select(self, candidate: int) -> None:
        self.chosen.fill_(candidate)
