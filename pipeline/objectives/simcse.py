"""Unsupervised SimCSE (Gao et al. 2021, section 3): a sentence finds itself among others, seen through another dropout mask."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from pipeline.losses import info_nce
from pipeline.models.heads import HeadName, head_of
from pipeline.models.trainable import TrainableEncoder
from pipeline.objectives import OBJECTIVES, Batch, Loss, Objective, Positive, View


@OBJECTIVES.register("simcse")
class SimCSE(Objective):
    """Each text is encoded twice in one pass, so that every copy draws its own masks; candidates of the first copies are the second ones, of all ranks.

    It needs an encoder with dropout: without it, both copies are one vector and nothing is learnt but to push texts apart. The head belongs to the training alone: the
    product is the encoder without it.
    """

    columns = ("text",)
    positives = True

    def __init__(self, encoder: nn.Module, *, temperature: Positive = 0.05, head: HeadName = "cls_mlp") -> None:
        super().__init__(encoder)
        self.temperature = temperature
        self.head = head_of(head, self.dim)
        self.truncates = head == "none"

    def views(self, batch: Batch) -> Sequence[View]:
        return 2 * (View(self.encoder, batch.tokens("text")),)

    def doubts(self) -> list[str]:
        """Whether both copies are one vector: tried on a text."""
        encoder = cast(TrainableEncoder, self.encoder)
        tokens, was = encoder.folder.tokenizer()(["a"]), encoder.training
        with torch.random.fork_rng(), torch.no_grad():
            first, second = (encoder.train()(tokens) for _ in range(2))
        encoder.train(was)
        return ["simcse: the encoder has no dropout, so that both views of a text are one vector, and training fails; set train.dropout"] if first.equal(second) else []

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        first, second = map(self.head, reps)
        candidates = batch.peers.gather(second)
        return Loss.of(info_nce=info_nce(first, candidates, temperature=self.temperature, excluded=batch.excluded(first.device), first=batch.first))
