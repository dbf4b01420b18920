"""PSER (Guo et al.): SimCSE with shuffled positions, plus R-Drop's divergence (Liang et al. 2021)."""

from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn

from pipeline.losses import info_nce, pser
from pipeline.models.trainable.perturbations import keeps_special, shuffled_positions
from pipeline.objectives import OBJECTIVES, Batch, Loss, Objective, Positive, View


@OBJECTIVES.register("pser")
class Pser(Objective):
    """InfoNCE of a text and its view with shuffled positions, plus alpha times their divergence.

    Each view has its own dropout mask. `kl_on`: "embedding" compares softmax(z1) and softmax(z2) over the
    dimensions, the literal reading of the paper; "similarity" compares the distributions over the candidates
    of all ranks (cosines over the temperature), as R-Drop does. The paper does not state its temperature and
    alpha; the defaults are those of SimCSE and R-Drop. `keep_special`: the first and the last token keep
    their positions; None: if the pooling uses one of them.
    """

    columns = ("text",)
    has_positive_pairs = True
    allows_truncation = True

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
            offset=batch.offset,
        )
        return Loss.of(
            info_nce=value, divergence=self.alpha * self._divergence(first, second, candidates, batch)
        )

    def _divergence(self, first: Tensor, second: Tensor, candidates: Tensor, batch: Batch) -> Tensor:
        """Compute the divergence of this rank's rows.

        Over similarities it is that of all rows, equal on every rank, because the distributions of second
        views need all first views too.
        """
        if self.kl_on == "embedding":
            return pser(first, second, temperature=self.temperature)
        return pser(batch.peers.gather(first), candidates, temperature=self.temperature, kl_on="similarity")
