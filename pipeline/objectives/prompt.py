"""Unsupervised PromptBERT (Jiang et al. 2022, section 4): contrastive learning with two prompt templates."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field
from torch import nn

from pipeline.models.folder.encoder_folder import MASKED, EncoderFolder
from pipeline.models.trainable.heads import HeadName, head_of
from pipeline.models.trainable.prompted import PromptedEncoder
from pipeline.objectives import OBJECTIVES, Batch, PositiveFloat, Product, View
from pipeline.objectives.in_batch import HeadedContrast

Limit = Annotated[int, Field(ge=1)]
_TEMPLATES = ('This sentence of "[X]" means [MASK].', 'This sentence : "[X]" means [MASK].')
_ROBERTA_TEMPLATES = ("This sentence : '[X]' means [MASK].", "The sentence : '[X]' means [MASK].")


@OBJECTIVES.register("prompt")
class Prompt(HeadedContrast):
    """InfoNCE of the mask tokens of two templates around each text; candidates come from all ranks.

    `templates`: None for the paper's, by the encoder's family. `limit`: number of tokens of a text, in the
    product too; None for as many as the encoder reads. `denoise`: subtract the mask token of the template
    without a text. The product reads the mask token of the first template, without head and without
    denoising.
    """

    columns = ("text",)
    needs_folder = True
    _reading: PromptedEncoder
    _product: PromptedEncoder

    def __init__(
        self,
        encoder: nn.Module,
        *,
        temperature: PositiveFloat = 0.05,
        templates: tuple[str, str] | None = None,
        limit: Limit | None = 32,
        denoise: bool = True,
        head: HeadName = "cls_mlp",
    ) -> None:
        super().__init__(encoder)
        first, second = templates or templates_of(self.encoder.folder)
        for name, subtract in (("_reading", denoise), ("_product", False)):
            self.set_unregistered(name, PromptedEncoder(self.encoder, first, limit=limit, denoise=subtract))
        self.dim, self.temperature = self._reading.dim, temperature
        self.head, self.allows_truncation = head_of(head, self.dim), head == "none"
        self._frames = (self._reading.frame, self._reading.frame_of(second))

    def views(self, batch: Batch) -> Sequence[View]:
        return [
            View(self._reading, self._reading.framed(batch.tokens("text"), frame)) for frame in self._frames
        ]

    def product(self) -> Product:
        return Product(self._product)


def templates_of(folder: EncoderFolder) -> tuple[str, str]:
    """Return the paper's two templates for BERT, or for RoBERTa."""
    return _ROBERTA_TEMPLATES if folder.family == "roberta" else _TEMPLATES


def default_template(folder: EncoderFolder) -> str | None:
    """Return the template if the settings have none: None for the folder's own, else the paper's first."""
    return None if folder.pooling == MASKED else templates_of(folder)[0]
