"""QuickThoughts (Logeswaran & Lee 2018): two encoders learn to find the neighbours of a sentence."""

import copy
import hashlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field, JsonValue
from torch import Tensor, nn

from pipeline.losses.context import quick_thoughts
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.objectives import OBJECTIVES, Batch, Loss, Objective, TrainedModel, View


@OBJECTIVES.register("quickthoughts")
class QuickThoughts(Objective):
    """Cross-entropy of softmax(f(i) . g(j)), raw inner products, with the neighbours of i as targets.

    Neighbours are sentences of the same document at a distance of at most `context`; the targets give them
    equal probability. The batches of all ranks together are one passage, which may span documents. Neighbours
    may be on different ranks, so every rank computes the loss of all rows. `diag`: "mask" removes a sentence
    from its own candidates, "zero" gives it score 0, as the published program does.

    `second` chooses the encoder g. "copy" starts with the weights of f. "drawn" starts with new weights; the
    paper also draws new weights for f. "same" is f itself, which favours vectors that are all alike.
    `inference`: "both" concatenates the vectors of both encoders, as published, which doubles the dimension;
    "first" uses f alone. `skip_thought` writes the neighbours instead of finding them; `simcse` can use the
    next sentence as the positive.
    """

    columns = ("text", "document", "position")
    allows_truncation = True
    min_rows = 3  # with two, a sentence's neighbour is its only candidate

    def __init__(
        self,
        encoder: nn.Module,
        *,
        context: Annotated[int, Field(ge=1)] = 1,
        diag: Literal["mask", "zero"] = "mask",
        second: Literal["copy", "drawn", "same"] = "copy",
        inference: Literal["both", "first"] = "both",
    ) -> None:
        super().__init__(encoder)
        self.twin = None if second == "same" else copy.deepcopy(self.encoder)
        if self.twin is not None and second == "drawn":
            self.twin.draw()
        self.context, self.diag, self.inference = context, diag, inference

    @classmethod
    def correction(cls, options: Mapping[str, JsonValue], encoder: EncoderFolder) -> str | None:
        return "batches span documents"

    def views(self, batch: Batch) -> Sequence[View]:
        tokens = batch.tokens("text")
        return View(self.encoder, tokens), View(self.encoder if self.twin is None else self.twin, tokens)

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        first, second = (batch.peers.gather(rep) for rep in reps)
        excluded = batch.false_negative_mask("text", first.device)
        if excluded is not None:
            excluded = batch.peers.gather(excluded.to(torch.uint8)).bool()
        return Loss.of(
            neighbours=quick_thoughts(
                first,
                second,
                documents=batch.peers.gather(_run_numbers(batch).to(first.device)),
                context=self.context,
                diag=self.diag,
                excluded=excluded,
            )
        )

    def warnings(self) -> list[str]:
        warnings = []
        if self.twin is None:
            warnings.append(
                "quickthoughts: one encoder for both sides favours vectors that are all alike; "
                "set second to copy or drawn"
            )
        if self.encoder.folder.normalize:
            warnings.append(
                "quickthoughts: inner products of unit vectors are between -1 and 1; "
                "set encoder.normalize to false"
            )
        return warnings

    def trained_model(self) -> TrainedModel:
        return TrainedModel(self.encoder, twin=self.twin if self.inference == "both" else None)


def _run_numbers(batch: Batch) -> Tensor:
    """Return (n,) int64, equal for rows of one run of consecutive sentences, on any rank.

    In a run, positions rise by one from row to row of the passage, so that the position minus the row's index
    is constant. A row without a document is a run of its own.
    """
    indices = batch.offset + np.arange(len(batch))
    runs = np.asarray(batch.column("position")) - indices
    names = [
        f"row {row}" if document is None else f"document {document} {run}"
        for row, document, run in zip(
            batch.rows.tolist(), batch.column("document"), runs.tolist(), strict=True
        )
    ]
    digests = [hashlib.blake2b(name.encode(), digest_size=8).digest() for name in names]
    return torch.tensor([int.from_bytes(digest, "big", signed=True) for digest in digests])
