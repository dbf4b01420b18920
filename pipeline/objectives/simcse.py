"""Unsupervised SimCSE (Gao et al. 2021, section 3): a sentence finds itself among others, seen through another dropout mask."""

from collections.abc import Sequence

from torch import Tensor, nn

from pipeline.losses import info_nce
from pipeline.models.heads import HeadName, head_of
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

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        first, second = map(self.head, reps)
        candidates = batch.peers.gather(second)
        return Loss.of(info_nce=info_nce(first, candidates, temperature=self.temperature, excluded=batch.excluded(first.device), first=batch.first))
