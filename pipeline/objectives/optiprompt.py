"""Continuous templates (OptiPrompt: Zhong et al. 2021; as PromptBERT compares them, Jiang et al. 2022): the encoder stays as it is, the template's words are learnt."""

from collections.abc import Sequence
from typing import cast

from torch import Tensor, nn

from pipeline.errors import ConfigError
from pipeline.losses import info_nce
from pipeline.models.trainable.encoder import TrainableEncoder
from pipeline.models.trainable.lora import is_adapted
from pipeline.models.trainable.mlm_head import has_language_head
from pipeline.models.trainable.prompted import transform_of
from pipeline.models.trainable.soft_prompt import LearnedTemplate
from pipeline.objectives import OBJECTIVES, Batch, Loss, Objective, Positive, Product, View
from pipeline.objectives.prompt import Limit, beside, own_or_first


@OBJECTIVES.register("optiprompt")
class OptiPrompt(Objective):
    """Each text is read twice, under two dropout masks, at the mask of a template of free vectors; candidates of the first copies are the second ones, of all ranks.

    The vectors begin as the words of `template` (None: the paper's first for the encoder's family); all weights of the encoder are frozen. What is compared is read
    through the layer in front of the words of the folder's masked language model, where there is one; the product is the mask's state itself.
    """

    columns = ("text",)
    reads_folder = True
    positives = True
    _reading: LearnedTemplate
    _product: LearnedTemplate

    def __init__(
        self,
        encoder: nn.Module,
        *,
        temperature: Positive = 0.05,
        template: str | None = None,
        limit: Limit = 32,
    ) -> None:
        super().__init__(encoder)
        trained, self.temperature = cast(TrainableEncoder, encoder), temperature
        if is_adapted(encoder):
            raise ConfigError(
                "train.lora.rank",
                "no adapters for optiprompt, which leaves the encoder as it is",
                "some",
                "leave train.lora out, or train with prompt",
            )
        encoder.requires_grad_(False)
        self.transform = transform_of(trained).requires_grad_(False) if has_language_head(trained) else None
        template = own_or_first(trained.folder) if template is None else template
        beside(self, "_reading", LearnedTemplate(trained, template, limit=limit, transform=self.transform))
        beside(self, "_product", LearnedTemplate(trained, template, limit=limit))
        self.dim = self._reading.dim

    def views(self, batch: Batch) -> Sequence[View]:
        return 2 * (View(self._reading, self._reading.framed(batch.tokens("text"), self._reading.frame)),)

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        first, second = reps
        candidates = batch.peers.gather(second)
        return Loss.of(
            info_nce=info_nce(
                first,
                candidates,
                temperature=self.temperature,
                excluded=batch.excluded("text", first.device),
                offset=batch.first,
            )
        )

    def product(self) -> Product:
        return Product(self._product)
