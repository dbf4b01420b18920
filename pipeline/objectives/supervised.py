"""Supervised SimCSE (Gao et al. 2021, section 4): an anchor finds its positive among the positives, and the hard negatives, of all anchors."""

from collections.abc import Sequence

from torch import Tensor, nn

from pipeline.losses import info_nce
from pipeline.models.heads import HeadName, head_of
from pipeline.objectives import OBJECTIVES, Batch, Loss, Objective, View


@OBJECTIVES.register("supervised")
class Supervised(Objective):
    """Premise, an entailed hypothesis and, where there is one, a contradicting one.

    `hard_negative_weight` multiplies an anchor's own hard negative in the denominator of its softmax; those of other anchors have weight one (equation 5, and the weight
    of its appendix). The layer over [CLS] that the paper keeps at inference is the encoder's own (pooling cls_mlp); a head here is for the training alone.
    """

    columns = ("anchor", "positive")
    optional = ("negative",)

    def __init__(self, encoder: nn.Module, *, temperature: float = 0.05, head: HeadName = "none", hard_negative_weight: float = 1.0) -> None:
        super().__init__(encoder)
        self.temperature, self.hard_negative_weight = temperature, hard_negative_weight
        self.head = head_of(head, self.dim)

    def views(self, batch: Batch) -> Sequence[View]:
        roles = [*self.columns, *(role for role in self.optional if role in batch)]
        return [View(self.encoder, batch.tokens(role)) for role in roles]

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        anchors, *columns = map(self.head, reps)
        positives, *rest = [batch.peers.gather(column) for column in columns]
        value = info_nce(
            anchors, positives, negatives=rest[0] if rest else None, hard_negative_weight=self.hard_negative_weight,
            temperature=self.temperature, excluded=batch.excluded(anchors.device), first=batch.first,
        )
        return Loss.of(info_nce=value)
