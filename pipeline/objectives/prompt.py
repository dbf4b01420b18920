"""Unsupervised PromptBERT (Jiang et al. 2022, section 4): contrastive learning with two prompt templates."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated

from pydantic import Field
from torch import nn

from pipeline.models.folder.encoder_folder import MASKED, EncoderFolder
from pipeline.models.layers.post_pooling import HeadName, head_of
from pipeline.models.trainable.prompted import PromptedEncoder
from pipeline.objectives import OBJECTIVES, Batch, PositiveFloat, TrainedModel, View
from pipeline.objectives.in_batch import HeadedContrast

Limit = Annotated[int, Field(ge=1)]
_TEMPLATES = ('This sentence of "[X]" means [MASK].', 'This sentence : "[X]" means [MASK].')
_ROBERTA_TEMPLATES = ("This sentence : '[X]' means [MASK].", "The sentence : '[X]' means [MASK].")


@OBJECTIVES.register("prompt")
class Prompt(HeadedContrast):
    """InfoNCE of the mask tokens of two templates around each text; candidates come from all ranks.

    `templates` are by default the paper's, for the encoder's family. `limit` is the largest number of tokens
    of a text, in training and in inference; None means the encoder's limit. `denoise` subtracts the mask
    token's state in the template without a text. `temperature` divides the cosines. Inference uses the first
    template, without head and denoising. For pairs use `prompt_supervised`; to train the template alone,
    `optiprompt`.
    """

    columns = ("text",)
    _training_encoder: PromptedEncoder
    _inference_encoder: PromptedEncoder

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
        prompted = partial(PromptedEncoder, self.encoder, first, limit=limit)
        self.set_unregistered("_training_encoder", prompted(denoise=denoise))
        self.set_unregistered("_inference_encoder", prompted(denoise=False))
        self.dim, self.temperature = self._training_encoder.dim, temperature
        self.head, self.allows_truncation = head_of(head, self.dim), head == "none"
        self._frames = (self._training_encoder.frame, self._training_encoder.frame_of(second))

    def views(self, batch: Batch) -> Sequence[View]:
        encoder, tokens = self._training_encoder, batch.tokens("text")
        return [View(encoder, encoder.put_into(tokens, frame)) for frame in self._frames]

    def trained_model(self) -> TrainedModel:
        return TrainedModel(self._inference_encoder)


def templates_of(folder: EncoderFolder) -> tuple[str, str]:
    """Return the paper's two templates for BERT, or for RoBERTa."""
    return _ROBERTA_TEMPLATES if folder.family == "roberta" else _TEMPLATES


def default_template(folder: EncoderFolder) -> str | None:
    """Return the template to use if the settings name none.

    Returns:
        None if the folder has a template of its own, else the paper's first one.
    """
    return None if folder.pooling == MASKED else templates_of(folder)[0]
