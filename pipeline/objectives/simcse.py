"""Unsupervised SimCSE (Gao et al. 2021, section 3): each text is its own positive, with other dropout."""

from collections.abc import Sequence
from typing import Literal, cast

from torch import Tensor, nn

from pipeline.losses import info_nce
from pipeline.models.trainable.encoder import TrainableEncoder
from pipeline.models.trainable.heads import HeadName, head_of
from pipeline.objectives import OBJECTIVES, Batch, Loss, Objective, Positive, View


@OBJECTIVES.register("simcse")
class SimCSE(Objective):
    """InfoNCE of two copies of each text with different dropout masks; candidates come from all ranks.

    Both copies are encoded in one pass. The encoder needs dropout: without it both copies are equal, and the
    loss only pushes texts apart. `masks`: "shared" makes them equal on purpose, for the paper's ablation.
    Inference does not use the head.
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
        self.allows_truncation = head == "none"
        self.has_positive_pairs = masks == "own"

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
                offset=batch.offset,
            )
        )

    def warnings(self) -> list[str]:
        if self.masks == "own" and cast(TrainableEncoder, self.encoder).backbone.drops:
            return []
        found, remedy = "the encoder has no dropout", "train.dropout"
        if self.masks == "shared":
            found, remedy = "masks are shared", "masks to own"
        return [
            f"simcse: {found}, so that both views of a text are equal, and little is learnt; set {remedy}"
        ]
