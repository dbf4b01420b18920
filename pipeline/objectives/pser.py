"""PSER (Guo et al.): SimCSE with shuffled positions, plus R-Drop's divergence (Liang et al. 2021)."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field, JsonValue
from torch import Tensor, nn

from pipeline.losses.divergence import pser
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.trainable.perturbations import pools_special, shuffled_positions
from pipeline.objectives import OBJECTIVES, Batch, Loss, PositiveFloat, View
from pipeline.objectives.in_batch import InBatchContrast


@OBJECTIVES.register("pser")
class Pser(InBatchContrast):
    """InfoNCE of a text and its view with shuffled positions, plus alpha times their divergence.

    Each view has its own dropout mask. The paper does not state its temperature and alpha; the defaults are
    those of SimCSE and R-Drop.

    Args:
        temperature: divides the cosines.
        alpha: weight of the divergence; 0 leaves it out.
        kl_on: "embedding" compares softmax(z1) and softmax(z2) over the dimensions, the literal reading of
            the paper; "similarity" compares the distributions over the candidates of all ranks (softmax of
            cosines / temperature), as R-Drop compares distributions over classes.
        shuffle: False leaves the positions of both views unchanged, so that the views differ by dropout only.
            With alpha 0 as well, this is SimCSE with the encoder's pooling. Both are ablations of the paper.
        keep_special: True if [CLS] and [SEP] keep their positions; the paper shuffles only the tokens of the
            text.
    """

    columns = ("text",)
    allows_truncation = True

    def __init__(
        self,
        encoder: nn.Module,
        *,
        temperature: PositiveFloat = 0.05,
        alpha: Annotated[float, Field(ge=0)] = 1.0,
        kl_on: Literal["embedding", "similarity"] = "embedding",
        shuffle: bool = True,
        keep_special: bool = True,
    ) -> None:
        super().__init__(encoder)
        self.temperature, self.alpha, self.kl_on = temperature, alpha, kl_on
        self.shuffle, self.keep_special = shuffle, keep_special

    @classmethod
    def correction(cls, options: Mapping[str, JsonValue], encoder: EncoderFolder) -> str | None:
        shuffled_special = "keep_special" not in options and not pools_special(encoder.pooling)
        return "keep_special" if shuffled_special else None

    def views(self, batch: Batch) -> Sequence[View]:
        tokens = batch.tokens("text")
        shuffled = shuffled_positions(tokens, keep_special=self.keep_special) if self.shuffle else None
        return View(self.encoder, tokens), View(self.encoder, tokens, positions=shuffled)

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        contrast = super().loss(reps, batch)
        if self.alpha == 0:
            return contrast
        first, second = reps
        if self.kl_on == "similarity":  # distributions over the rows of all ranks need all their vectors
            first, second = batch.peers.gather(first), batch.peers.gather(second)
        divergence = pser(first, second, temperature=self.temperature, kl_on=self.kl_on)
        return contrast + Loss.of(divergence=self.alpha * divergence)
