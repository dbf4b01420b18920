"""PSER (Guo et al.): a sentence finds itself with its tokens at other places, and what both views predict agrees (R-Drop: Liang et al. 2021)."""

from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn

from pipeline.losses import info_nce, pser
from pipeline.models.trainable.perturbations import keeps_special, shuffled_positions
from pipeline.objectives import OBJECTIVES, Batch, Loss, Objective, Positive, View


@OBJECTIVES.register("pser")
class Pser(Objective):
    """InfoNCE of a text and its shuffled view under dropout masks of their own, and alpha times the symmetric divergence of the two.

    kl_on: the divergence of softmax(z1) and softmax(z2) over the dimensions, as the text reads literally; or of the distributions over the candidates (cosines over the
    temperature), of all ranks, which is what R-Drop compares. The paper's temperature and alpha are not known; these are SimCSE's and R-Drop's.
    keep_special: the first and the last token keep their places; None: where the pooling takes one of them.
    """

    columns = ("text",)
    positives = True
    truncates = True

    def __init__(
        self,
        encoder: nn.Module,
        *,
        temperature: Positive = 0.05,
        alpha: Positive = 1.0,
        kl_on: Literal["embedding", "similarity"] = "embedding",
        keep_special: bool | None = None,
    ) -> None:
        super().__init__(encoder)
        self.temperature, self.alpha, self.kl_on = temperature, alpha, kl_on
        self.keep_special = keeps_special(encoder) if keep_special is None else keep_special

    def views(self, batch: Batch) -> Sequence[View]:
        tokens = batch.tokens("text")
        shuffled = shuffled_positions(tokens, keep_special=self.keep_special)
        return View(self.encoder, tokens), View(self.encoder, tokens, positions=shuffled)

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        first, second = reps
        candidates = batch.peers.gather(second)
        value = info_nce(
            first,
            candidates,
            temperature=self.temperature,
            excluded=batch.excluded("text", first.device),
            offset=batch.first,
        )
        return Loss.of(
            info_nce=value, divergence=self.alpha * self._divergence(first, second, candidates, batch)
        )

    def _divergence(self, first: Tensor, second: Tensor, candidates: Tensor, batch: Batch) -> Tensor:
        """Of this rank's rows; over similarities of all rows, the same on every rank, since the distributions of second views need all first ones too."""
        if self.kl_on == "embedding":
            return pser(first, second, temperature=self.temperature)
        return pser(batch.peers.gather(first), candidates, temperature=self.temperature, kl_on="similarity")
