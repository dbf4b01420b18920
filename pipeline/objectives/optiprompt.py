"""Continuous templates (OptiPrompt: Zhong et al. 2021; Jiang et al. 2022): only the template is learnt."""

from collections.abc import Sequence

from torch import nn

from pipeline.errors import ConfigError
from pipeline.models.trainable.lora import is_adapted
from pipeline.models.trainable.mlm_head import has_language_head
from pipeline.models.trainable.prompted import transform_of
from pipeline.models.trainable.soft_prompt import LearnedTemplate
from pipeline.objectives import OBJECTIVES, Batch, PositiveFloat, Product, View
from pipeline.objectives.in_batch import InBatchContrast
from pipeline.objectives.prompt import Limit, default_template


@OBJECTIVES.register("optiprompt")
class OptiPrompt(InBatchContrast):
    """InfoNCE of two passes, with different dropout, over a template of free vectors.

    Each text is represented by the mask token of the template. The template's vectors start as the words of
    `template` (None: the paper's first template for the encoder's family); all weights of the encoder are
    frozen. The loss reads the mask token through the folder's masked language model head, up to its word
    layer, if there is one; the product reads the mask token's state itself. `limit`: number of tokens of a
    text, in the product too; None for as many as the encoder reads.
    """

    columns = ("text",)
    needs_folder = True
    _reading: LearnedTemplate
    _product: LearnedTemplate

    def __init__(
        self,
        encoder: nn.Module,
        *,
        temperature: PositiveFloat = 0.05,
        template: str | None = None,
        limit: Limit | None = 32,
    ) -> None:
        super().__init__(encoder)
        trained, self.temperature = self.encoder, temperature
        if is_adapted(encoder):
            raise ConfigError(
                "train.lora.rank",
                "no adapters for optiprompt, which does not train the encoder",
                "adapters",
                "leave train.lora out, or train with prompt",
            )
        encoder.requires_grad_(False)
        self.transform = transform_of(trained).requires_grad_(False) if has_language_head(trained) else None
        template = default_template(trained.folder) if template is None else template
        for name, transform in (("_reading", self.transform), ("_product", None)):
            self.set_unregistered(name, LearnedTemplate(trained, template, limit=limit, transform=transform))
        self.dim = self._reading.dim

    def views(self, batch: Batch) -> Sequence[View]:
        return 2 * (View(self._reading, self._reading.framed(batch.tokens("text"), self._reading.frame)),)

    def product(self) -> Product:
        return Product(self._product)
