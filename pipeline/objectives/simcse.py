"""Unsupervised SimCSE (Gao et al. 2021, section 3): a sentence finds itself among others, seen through another dropout mask."""

from collections.abc import Sequence
from typing import Literal, cast

from torch import Tensor, nn

from pipeline.losses import info_nce
from pipeline.models.trainable.encoder import TrainableEncoder
from pipeline.models.trainable.heads import HeadName, head_of
from pipeline.objectives import OBJECTIVES, Batch, Loss, Objective, Positive, View


@OBJECTIVES.register("simcse")
class SimCSE(Objective):
    """Each text is encoded twice in one pass, so that every copy draws its own masks; candidates of the first copies are the second ones, of all ranks.

    It needs an encoder with dropout: without it, both copies are one vector and nothing is learnt but to push texts apart. masks: shared makes them one vector on
    purpose, as the paper does to show what its method rests on. The head belongs to the training alone: the product is the encoder without it.
    """

    columns = ("text",)

    def __init__(
        self,
        encoder: nn.Module,
        *,
        temperature: Positive = 0.05,
        head: HeadName = "cls_mlp",
        masks: Literal["own", "shared"] = "own",
    ) -> None:
        super().__init__(encoder)
        self.temperature, self.masks = temperature, masks
        self.head = head_of(head, self.dim)
        self.truncates = head == "none"
        self.positives = masks == "own"

    def views(self, batch: Batch) -> Sequence[View]:
        view = View(self.encoder, batch.tokens("text"))
        return (view, view) if self.masks == "own" else (view,)

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        first, second = self.head(reps[0]), self.head(reps[-1])
        candidates = batch.peers.gather(second)
        return Loss.of(
            info_nce=info_nce(
                first,
                candidates,
                temperature=self.temperature,
                excluded=batch.excluded("text", first.device),
                offset=batch.first,
            )
        )

    def doubts(self) -> list[str]:
        if self.masks == "own" and cast(TrainableEncoder, self.encoder).backbone.drops:
            return []
        found, remedy = (
            ("the encoder has no dropout", "train.dropout")
            if self.masks == "own"
            else ("masks are shared", "masks to own")
        )
        return [
            f"simcse: {found}, so that both views of a text are one vector, and little is learnt; set {remedy}"
        ]
