"""Contrastive tension (Carlsson et al. 2021): two encoders learn whether they read the same text."""

import copy
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, cast

import torch
from pydantic import Field, JsonValue
from torch import Tensor, nn

from pipeline.errors import ConfigError
from pipeline.losses.pairs import contrastive_tension
from pipeline.objectives import OBJECTIVES, Batch, Loss, OffersCandidates, TrainedModel, View

_NEGATIVES = 7  # for each positive, as published


@OBJECTIVES.register("contrastive_tension")
class ContrastiveTension(OffersCandidates):
    """Binary cross-entropy of predicting whether x equals x', from the raw inner product f1(x) . f2(x').

    The two encoders start with equal weights. Every row of a batch becomes the first text of one pair. The
    rows of all ranks are divided into groups of 1 + `negatives` consecutive rows. The first row of a group is
    paired with itself, a positive. All other rows, of all groups together, form a ring: each is paired with
    the next one in the ring, a negative. So 8 pairs have 8 texts, and each encoder reads each text once. (In
    the published program no two pairs share a text, so 8 pairs have 15 texts.) A pair of different rows is a
    positive too if `Batch.false_negatives` says that their texts are equal.

    Inner products of a pretrained encoder are in the hundreds, and so are the first losses. The published
    learning rates belong to `reduction` "mean". `inference` names the encoder that is the result: by
    convention the second; "best" is the one with the better score on dev, chosen again at each measurement.
    The paper trains without dropout (train.dropout=0). `simcse` reads the same column and trains one encoder.
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
        negatives: Annotated[int, Field(ge=1)] = _NEGATIVES,
        reduction: Literal["mean", "sum"] = "mean",
        inference: Literal["first", "second", "best"] = "second",
    ) -> None:
        super().__init__(encoder)
        self.twin = copy.deepcopy(self.encoder)
        self.negatives, self.reduction, self.inference = negatives, reduction, inference
        self.register_buffer("chosen", torch.zeros((), dtype=torch.int64))

    @classmethod
    def check_batch(cls, options: Mapping[str, JsonValue], rows: int, *, all_ranks: bool) -> None:
        negatives = int(cast(int, options.get("negatives", _NEGATIVES)))
        if rows - -(-rows // (1 + negatives)) < 2:  # a ring of one row pairs it with itself
            raise ConfigError(
                "negatives of contrastive_tension",
                "at least two negatives in a batch, since the text of each is another one's",
                f"{negatives} for each positive, in batches of {rows} rows",
                "raise negatives, or the batch size",
            )

    def views(self, batch: Batch) -> Sequence[View]:
        tokens = batch.tokens("text")
        return View(self.encoder, tokens), View(self.twin, tokens)

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        first, second = reps
        gathered = batch.peers.gather(second)
        rows = torch.arange(len(batch), device=first.device)
        partners = self.partners(len(gathered)).to(first.device)[batch.offset + rows]
        equal = partners == batch.offset + rows
        if (same_text := batch.false_negative_mask("text", first.device)) is not None:
            equal = equal | same_text[rows, partners]
        value = contrastive_tension(first, gathered[partners], equal, reduction=self.reduction)
        ranks = len(gathered) // len(batch)
        # The training step averages over ranks, so a sum is multiplied by the number of ranks.
        return Loss.of(tension=value * ranks if self.reduction == "sum" else value)

    def partners(self, count: int) -> Tensor:
        """Return the partner of each of the `count` rows of all ranks: (count,) int64 row indices."""
        rows = torch.arange(count)
        is_negative = rows % (1 + self.negatives) != 0
        partners = rows.clone()
        partners[is_negative] = rows[is_negative].roll(-1)
        return partners

    def warnings(self) -> list[str]:
        if not self.encoder.folder.normalize:
            return []
        return [
            "contrastive_tension: inner products of unit vectors are between -1 and 1; "
            "set encoder.normalize to false"
        ]

    def trained_model(self) -> TrainedModel:
        return self.candidates()[int(self.chosen)]

    def candidates(self) -> tuple[TrainedModel, ...]:
        encoders = {"first": (self.encoder,), "second": (self.twin,), "best": (self.twin, self.encoder)}
        return tuple(TrainedModel(encoder) for encoder in encoders[self.inference])

    def select(self, candidate: int) -> None:
        self.chosen.fill_(candidate)
