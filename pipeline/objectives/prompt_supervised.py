"""Supervised PromptBERT (Jiang et al. 2022, section 4): pairs and hard negatives in one prompt template."""

from collections.abc import Sequence
from typing import Literal

from torch import nn

from pipeline.models.layers.post_pooling import DenoiseTransform
from pipeline.models.trainable.heads import TanhHead
from pipeline.models.trainable.mlm_head import has_language_head
from pipeline.models.trainable.prompted import PromptedEncoder, transform_of
from pipeline.objectives import OBJECTIVES, Batch, PositiveFloat, Product, View
from pipeline.objectives.in_batch import InBatchContrast
from pipeline.objectives.prompt import Limit, default_template

Readout = Literal["transform", "mlp", "none"]


@OBJECTIVES.register("prompt_supervised")
class PromptSupervised(InBatchContrast):
    """InfoNCE of anchors with positives and hard negatives, each read at the mask token of one template.

    With h the mask token's state and h_hat that of the template without a text, vectors are T(h) - T(h_hat)
    or tanh(W (h - h_hat) + b), in training and in inference. T is the folder's masked language model head up
    to its word layer; W and b are new.

    `readout`: "transform" for T, "mlp" for W and b, "none" for the states themselves. None: transform for a
    BERT that has the head, else mlp, as in the paper. `template`: None for the folder's own, or the paper's
    first for the encoder's family. `limit`: number of tokens of a text, in the product too; None for as many
    as the encoder reads. `hard_negative_weight`: as in `supervised`.
    """

    columns = ("anchor", "positive")
    optional = ("negative",)
    needs_folder = True
    _reading: PromptedEncoder

    def __init__(
        self,
        encoder: nn.Module,
        *,
        temperature: PositiveFloat = 0.05,
        template: str | None = None,
        limit: Limit | None = 32,
        denoise: bool = True,
        readout: Readout | None = None,
        hard_negative_weight: PositiveFloat = 1.0,
    ) -> None:
        super().__init__(encoder)
        trained = self.encoder
        wanted = "transform" if trained.folder.family == "bert" and has_language_head(trained) else "mlp"
        chosen = readout or wanted
        self.temperature, self.hard_negative_weight = temperature, hard_negative_weight
        self.transform = transform_of(trained) if chosen == "transform" else None
        self.head = TanhHead(trained.backbone.width) if chosen == "mlp" else None
        template = default_template(trained.folder) if template is None else template
        layer = self.transform or self.head
        self.set_unregistered(
            "_reading", PromptedEncoder(trained, template, limit=limit, denoise=denoise, readout=layer)
        )
        self.dim = self._reading.dim

    def views(self, batch: Batch) -> Sequence[View]:
        return [
            View(self._reading, self._reading.framed(view.tokens, self._reading.frame))
            for view in super().views(batch)
        ]

    def product(self) -> Product:
        return Product(self._reading)

    def warnings(self) -> list[str]:
        if not isinstance(self.transform, DenoiseTransform) or has_language_head(self.encoder):
            return []
        return ["prompt_supervised: the encoder's folder has no language model head; a new layer replaces it"]
