"""Supervised SimCSE (Gao et al. 2021, section 4): pairs, with hard negatives if the data has them."""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor, nn

from pipeline.losses import info_nce
from pipeline.models.trainable.heads import DenseModule, HeadName, head_of
from pipeline.objectives import OBJECTIVES, Batch, Loss, Objective, Positive, Product, View


@OBJECTIVES.register("supervised")
class Supervised(Objective):
    """InfoNCE of anchors with positives and, if the data has them, hard negatives; for example NLI triples.

    `hard_negative_weight` multiplies an anchor's own hard negative in the denominator of its softmax; hard
    negatives of other anchors have weight one (equation 5, with the weight of the appendix). The paper keeps
    a layer over [CLS] at inference: that is pooling cls_mlp of the encoder, or with any pooling `head`, which
    inference keeps unless `keep_head` is false.
    """

    columns = ("anchor", "positive")
    optional = ("negative",)
    has_positive_pairs = True

    def __init__(
        self,
        encoder: nn.Module,
        *,
        temperature: Positive = 0.05,
        head: HeadName = "none",
        keep_head: bool = True,
        hard_negative_weight: Positive = 1.0,
    ) -> None:
        super().__init__(encoder)
        self.temperature, self.hard_negative_weight = temperature, hard_negative_weight
        self.keep_head = keep_head
        self.head = head_of(head, self.dim)
        self.allows_truncation = head == "none"

    def views(self, batch: Batch) -> Sequence[View]:
        roles = [*self.columns, *(role for role in self.optional if role in batch)]
        return [View(self.encoder, batch.tokens(role)) for role in roles]

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        anchors, *columns = map(self.head, reps)
        candidates, *rest = [batch.peers.gather(column) for column in columns]
        value = info_nce(
            anchors,
            candidates,
            negatives=rest[0] if rest else None,
            hard_negative_weight=self.hard_negative_weight,
            temperature=self.temperature,
            excluded=batch.excluded("anchor", anchors.device),
            offset=batch.offset,
        )
        return Loss.of(info_nce=value)

    def product(self) -> Product:
        kept = self.head if self.keep_head and isinstance(self.head, DenseModule) else None
        return replace(super().product(), head=kept)
