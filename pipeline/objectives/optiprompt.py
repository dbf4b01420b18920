"""Continuous templates (OptiPrompt: Zhong et al. 2021; Jiang et al. 2022): only the template is trained."""

from collections.abc import Sequence
from functools import partial

from torch import nn

from pipeline.errors import ConfigError
from pipeline.models.trainable.lora import is_adapted
from pipeline.models.trainable.mlm_head import has_language_head
from pipeline.models.trainable.prompted import transform_of
from pipeline.models.trainable.soft_prompt import LearnedTemplate
from pipeline.objectives import OBJECTIVES, Batch, PositiveFloat, TrainedModel, View
from pipeline.objectives.in_batch import InBatchContrast
from pipeline.objectives.prompt import Limit, default_template


@OBJECTIVES.register("optiprompt")
class OptiPrompt(InBatchContrast):
    """InfoNCE of two passes, with different dropout, over each text in a template of trained vectors.

    The vector of a text is the state of the mask token of the template. The template's vectors start as the
    embeddings of the words of `template` (None: the paper's first template for the encoder's family); all
    weights of the encoder are frozen. In training, the mask token's state passes through the masked language
    model head of the encoder's folder, without its last layer over the vocabulary, if the folder has a head;
    inference uses the state itself. `limit`: largest number of tokens of a text, in training and in
    inference; None: the encoder's limit.
    """

    columns = ("text",)
    needs_folder = True
    _training_encoder: LearnedTemplate
    _inference_encoder: LearnedTemplate

    def __init__(
        self,
        encoder: nn.Module,
        *,
        temperature: PositiveFloat = 0.05,
        template: str | None = None,
        limit: Limit | None = 32,
    ) -> None:
        super().__init__(encoder)
        self.temperature = temperature
        if is_adapted(encoder):
            raise ConfigError(
                "train.lora.rank",
                "no adapters for optiprompt, which does not train the encoder",
                "adapters",
                "leave train.lora out, or train with prompt",
            )
        encoder.requires_grad_(False)
        has_head = has_language_head(self.encoder)
        self.transform = transform_of(self.encoder).requires_grad_(False) if has_head else None
        template = default_template(self.encoder.folder) if template is None else template
        learned = partial(LearnedTemplate, self.encoder, template, limit=limit)
        self.set_unregistered("_training_encoder", learned(transform=self.transform))
        self.set_unregistered("_inference_encoder", learned(transform=None))
        self.dim = self._training_encoder.dim

    def views(self, batch: Batch) -> Sequence[View]:
        encoder = self._training_encoder
        return 2 * (View(encoder, encoder.put_into(batch.tokens("text"), encoder.frame)),)

    def trained_model(self) -> TrainedModel:
        return TrainedModel(self._inference_encoder)
