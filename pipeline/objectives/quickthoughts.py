"""QuickThoughts (Logeswaran & Lee 2018): a sentence picks its neighbours among the sentences around it, through two encoders."""

import copy
import hashlib
from collections.abc import Sequence
from typing import Annotated, Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from pipeline.losses import quick_thoughts
from pipeline.models.trainable.encoder import TrainableEncoder
from pipeline.objectives import OBJECTIVES, Batch, Loss, Objective, Product, View

Second = Literal["copy", "drawn", "same"]


@OBJECTIVES.register("quickthoughts")
class QuickThoughts(Objective):
    """Cross-entropy of softmax(f(i) . g(j)), raw inner products, with the sentences that stand up to `context` places before or behind i in its document, each alike.

    A batch is a piece of a document, of all ranks together: neighbours are found across the ranks' borders too, so every rank computes the loss of all rows.
    diag: a sentence is no candidate of its own ("mask"), or one with score 0 ("zero", as in the published program).

    second: g has weights of its own, which begin as those of f ("copy") or newly drawn ("drawn": where f begins from nothing too, as in the paper); or it is f ("same"):
    then a sentence and its neighbour have to be nearest to each other, which favours vectors that are all alike.
    inference: the vectors of both stand side by side ("both", as published: a product of twice the dimension), or f is the product.
    """

    columns = ("text", "document", "position")
    order = "contiguous"
    truncates = True
    least_rows = 3  # with two, a sentence's only candidate is its neighbour

    def __init__(
        self,
        encoder: nn.Module,
        *,
        context: Annotated[int, Field(ge=1)] = 1,
        diag: Literal["mask", "zero"] = "mask",
        second: Second = "copy",
        inference: Literal["both", "first"] = "both",
    ) -> None:
        super().__init__(encoder)
        self.twin = None if second == "same" else copy.deepcopy(encoder)
        if second == "drawn":
            cast(TrainableEncoder, self.twin).draw()
        self.context, self.diag, self.inference = context, diag, inference

    def views(self, batch: Batch) -> Sequence[View]:
        tokens = batch.tokens("text")
        return View(self.encoder, tokens), View(self.encoder if self.twin is None else self.twin, tokens)

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        first, second = (batch.peers.gather(rep) for rep in reps)
        documents = batch.peers.gather(_numbered(batch).to(first.device))
        alike = batch.excluded("text", first.device)
        excluded = None if alike is None else batch.peers.gather(alike.to(torch.uint8)).bool()
        value = quick_thoughts(
            first, second, documents=documents, context=self.context, diag=self.diag, excluded=excluded
        )
        return Loss.of(neighbours=value)

    def doubts(self) -> list[str]:
        alike = "quickthoughts: one encoder on both sides favours vectors that are all alike; set second to copy or drawn"
        short = "quickthoughts: inner products of vectors of length one stay between -1 and 1; set encoder.normalize to false"
        return [alike] * (self.twin is None) + [short] * cast(TrainableEncoder, self.encoder).folder.normalize

    def product(self) -> Product:
        twin = self.twin if self.inference == "both" else None
        return Product(cast(TrainableEncoder, self.encoder), twin=cast(TrainableEncoder | None, twin))


def _numbered(batch: Batch) -> Tensor:
    """(n,) int64: equal for rows of one document, on whichever ranks; a row of none is alone."""
    names = [
        f"row {row}" if document is None else f"document {document}"
        for row, document in zip(batch.rows.tolist(), batch.column("document"), strict=True)
    ]
    digests = [hashlib.blake2b(name.encode(), digest_size=8).digest() for name in names]
    return torch.tensor([int.from_bytes(digest, "big", signed=True) for digest in digests])
