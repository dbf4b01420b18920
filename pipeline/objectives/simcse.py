"""Unsupervised SimCSE (Gao et al. 2021, section 3): a text's positive is itself, under other dropout."""

from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn

from pipeline.losses import Similarity
from pipeline.models.trainable.heads import HeadName, head_of
from pipeline.objectives import OBJECTIVES, Batch, Loss, PositiveFloat, View
from pipeline.objectives.in_batch import HeadedContrast, default_temperature


@OBJECTIVES.register("simcse")
class SimCSE(HeadedContrast):
    """InfoNCE of two copies of each text with different dropout masks; candidates come from all ranks.

    Both copies are encoded in one pass. The encoder needs dropout: without it both copies are equal, and the
    loss only pushes texts apart. `masks`: "own" gives each copy its own dropout mask; "shared" uses one mask
    for both, the paper's ablation. `similarity`: "cosine", or "dot" for inner products, another ablation.
    `temperature`: None: 0.05 for cosines, 1 for inner products. Inference does not use the head.
    """

    columns = ("text",)

    def __init__(
        self,
        encoder: nn.Module,
        *,
        temperature: PositiveFloat | None = None,
        similarity: Similarity = "cosine",
        head: HeadName = "cls_mlp",
        masks: Literal["own", "shared"] = "own",
    ) -> None:
        super().__init__(encoder)
        self.temperature = temperature or default_temperature(similarity)
        self.similarity, self.masks = similarity, masks
        self.head = head_of(head, self.dim)
        self.allows_truncation = head == "none"
        self.has_positive_pairs = masks == "own"

    def views(self, batch: Batch) -> Sequence[View]:
        view = View(self.encoder, batch.tokens("text"))
        return (view, view) if self.masks == "own" else (view,)

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        return super().loss((reps[0], reps[-1]), batch)

    def warnings(self) -> list[str]:
        if self.masks == "own" and self.encoder.backbone.has_dropout:
            return []
        cause, remedy = "the encoder has no dropout", "train.dropout"
        if self.masks == "shared":
            cause, remedy = "masks are shared", "masks to own"
        return [
            f"simcse: {cause}, so that both views of a text are equal, and little is learnt; set {remedy}"
        ]
