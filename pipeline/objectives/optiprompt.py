"""Continuous templates (OptiPrompt: Zhong et al. 2021; Jiang et al. 2022): only the template is trained."""

from collections.abc import Mapping, Sequence
from functools import partial

from pydantic import JsonValue
from torch import nn

from pipeline.errors import ConfigError
from pipeline.models.folder.encoder_folder import MASKED, EncoderFolder
from pipeline.models.trainable.lora import is_adapted
from pipeline.models.trainable.mlm_head import has_language_head
from pipeline.models.trainable.prompted import transform_of
from pipeline.models.trainable.soft_prompt import LearnedTemplate
from pipeline.objectives import OBJECTIVES, Batch, PositiveFloat, TrainedModel, View
from pipeline.objectives.in_batch import InBatchContrast
from pipeline.objectives.prompt import Limit, templates_of


@OBJECTIVES.register("optiprompt")
class OptiPrompt(InBatchContrast):
    """InfoNCE of two passes, with different dropout, over each text in a template of trained vectors.

    The vector of a text is the state of the mask token of the template. The template's vectors start as the
    embeddings of the words of `template`. By default this is the template of the encoder's folder, or else
    `This sentence : "[X]" means [MASK].` with the quotes of the paper (Jiang et al. 2022) for the encoder's
    family. All weights of the encoder are frozen. In training, the mask token's state passes through the
    masked language model head of the encoder's folder, without its last layer over the vocabulary, if the
    folder has a head; inference uses the state itself. `limit` is the largest number of tokens of a text, in
    training and in inference; None means the encoder's limit. `temperature` divides the cosines. `prompt`
    trains the encoder, in fixed templates.
    """

    columns = ("text",)
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
        template = _initial_template(self.encoder.folder) if template is None else template
        learned = partial(LearnedTemplate, self.encoder, template, limit=limit)
        self.set_unregistered("_training_encoder", learned(transform=self.transform))
        self.set_unregistered("_inference_encoder", learned(transform=None))
        self.dim = self._training_encoder.dim

    @classmethod
    def correction(cls, options: Mapping[str, JsonValue], encoder: EncoderFolder) -> str | None:
        has_new_template = _initial_template(encoder) not in (None, templates_of(encoder)[0])
        return "template" if options.get("template") is None and has_new_template else None

    def views(self, batch: Batch) -> Sequence[View]:
        encoder = self._training_encoder
        return 2 * (View(encoder, encoder.put_into(batch.tokens("text"), encoder.frame)),)

    def trained_model(self) -> TrainedModel:
        return TrainedModel(self._inference_encoder)


def _initial_template(folder: EncoderFolder) -> str | None:
    """Return the paper's template with a colon, for the encoder's family; None if the folder has its own."""
    if folder.pooling == MASKED:
        return None
    return next(template for template in templates_of(folder) if template.startswith("This sentence :"))
