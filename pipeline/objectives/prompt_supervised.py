"""Supervised PromptBERT (Jiang et al. 2022, section 4): pairs and hard negatives in one prompt template."""

from collections.abc import Sequence
from functools import partial
from typing import Literal

from torch import nn

from pipeline.models.layers.post_pooling import DenoiseTransform, TanhHead
from pipeline.models.trainable.mlm_head import has_language_head
from pipeline.models.trainable.prompted import PromptedEncoder, transform_of
from pipeline.objectives import OBJECTIVES, Batch, PositiveFloat, TrainedModel, View
from pipeline.objectives.in_batch import InBatchContrast
from pipeline.objectives.prompt import Limit, default_template
from pipeline.settings.training import NEGATIVES

Readout = Literal["transform", "mlp", "none"]


@OBJECTIVES.register("prompt_supervised")
class PromptSupervised(InBatchContrast):
    """InfoNCE of anchors with positives and hard negatives, each encoded as the mask token of one template.

    Let h be the mask token's state, and h_hat its state in the template without a text; h_hat is left out if
    `denoise` is false. In training and in inference the vector of a text depends on `readout`:

    - transform: T(h) - T(h_hat), where T is the folder's masked language model head without its last layer
      over the vocabulary.
    - mlp: tanh(W (h - h_hat) + b), with new weights W and b.
    - none: h - h_hat.

    The default, None, means transform for a BERT that has the head, else mlp, as in the paper. `template` is
    by default the folder's, or if it has none, the paper's first one for the encoder's family. `limit` is the
    largest number of tokens of a text, in training and in inference; None means the encoder's limit. With
    `keep_denoise` False, inference leaves h_hat out, as the paper describes; with True it subtracts h_hat, as
    the paper's program does. `temperature` divides the cosines. `hard_negative_weight` and further hard
    negatives are as in `supervised`. Without pairs use `prompt`; without a template, `supervised`.
    """

    columns = ("anchor", "positive")
    optional = NEGATIVES
    _training_encoder: PromptedEncoder
    _inference_encoder: PromptedEncoder

    def __init__(
        self,
        encoder: nn.Module,
        *,
        temperature: PositiveFloat = 0.05,
        template: str | None = None,
        limit: Limit | None = 32,
        denoise: bool = True,
        keep_denoise: bool = True,
        readout: Readout | None = None,
        hard_negative_weight: PositiveFloat = 1.0,
    ) -> None:
        super().__init__(encoder)
        self.temperature, self.hard_negative_weight = temperature, hard_negative_weight
        folder = self.encoder.folder
        if readout is None:
            has_head = folder.family == "bert" and has_language_head(self.encoder)
            readout = "transform" if has_head else "mlp"
        self.transform = transform_of(self.encoder) if readout == "transform" else None
        self.head = TanhHead(self.encoder.backbone.width) if readout == "mlp" else None
        template = default_template(folder) if template is None else template
        prompted = partial(
            PromptedEncoder, self.encoder, template, limit=limit, readout=self.transform or self.head
        )
        self.set_unregistered("_training_encoder", prompted(denoise=denoise))
        self.set_unregistered("_inference_encoder", prompted(denoise=denoise and keep_denoise))
        self.dim = self._training_encoder.dim

    def views(self, batch: Batch) -> Sequence[View]:
        encoder = self._training_encoder
        return [View(encoder, encoder.put_into(view.tokens, encoder.frame)) for view in super().views(batch)]

    def trained_model(self) -> TrainedModel:
        return TrainedModel(self._inference_encoder)

    def warnings(self) -> list[str]:
        if not isinstance(self.transform, DenoiseTransform) or has_language_head(self.encoder):
            return []
        return ["prompt_supervised: the encoder's folder has no language model head; a new layer replaces it"]
