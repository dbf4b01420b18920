"""Unsupervised PromptBERT (Jiang et al. 2022, section 4): contrastive learning with two prompt templates."""

from collections.abc import Sequence
from typing import Annotated, cast

from pydantic import Field
from torch import Tensor, nn

from pipeline.losses import info_nce
from pipeline.models.folder.encoder_folder import MASKED, EncoderFolder
from pipeline.models.trainable.encoder import TrainableEncoder
from pipeline.models.trainable.heads import HeadName, head_of
from pipeline.models.trainable.prompted import PromptedEncoder
from pipeline.objectives import OBJECTIVES, Batch, Loss, Objective, Positive, Product, View

Limit = Annotated[int, Field(ge=1)]
_TEMPLATES = ('This sentence of "[X]" means [MASK].', 'This sentence : "[X]" means [MASK].')
_ROBERTA_TEMPLATES = ("This sentence : '[X]' means [MASK].", "The sentence : '[X]' means [MASK].")


@OBJECTIVES.register("prompt")
class Prompt(Objective):
    """InfoNCE of the mask tokens of two templates around each text; candidates come from all ranks.

    `templates`: None for the paper's, by the encoder's family. `limit`: number of tokens of a text.
    `denoise`: subtract the mask token of the template without a text. The product reads the mask token of the
    first template, without head and without denoising.
    """

    columns = ("text",)
    needs_folder = True
    has_positive_pairs = True
    _reading: PromptedEncoder
    _product: PromptedEncoder

    def __init__(
        self,
        encoder: nn.Module,
        *,
        temperature: Positive = 0.05,
        templates: tuple[str, str] | None = None,
        limit: Limit = 32,
        denoise: bool = True,
        head: HeadName = "cls_mlp",
    ) -> None:
        super().__init__(encoder)
        trained = cast(TrainableEncoder, encoder)
        first, second = templates or templates_of(trained.folder)
        set_unregistered(self, "_reading", PromptedEncoder(trained, first, limit=limit, denoise=denoise))
        set_unregistered(self, "_product", PromptedEncoder(trained, first, limit=limit, denoise=False))
        self.dim, self.temperature = self._reading.dim, temperature
        self.head, self.truncates = head_of(head, self.dim), head == "none"
        self._frames = (self._reading.frame, self._reading.frame_of(second))

    def views(self, batch: Batch) -> Sequence[View]:
        return [
            View(self._reading, self._reading.framed(batch.tokens("text"), frame)) for frame in self._frames
        ]

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        first, second = map(self.head, reps)
        candidates = batch.peers.gather(second)
        return Loss.of(
            info_nce=info_nce(
                first,
                candidates,
                temperature=self.temperature,
                excluded=batch.excluded("text", first.device),
                offset=batch.offset,
            )
        )

    def product(self) -> Product:
        return Product(self._product)


def templates_of(folder: EncoderFolder) -> tuple[str, str]:
    """Return the paper's two templates for BERT, or for RoBERTa."""
    return _ROBERTA_TEMPLATES if folder.family == "roberta" else _TEMPLATES


def default_template(folder: EncoderFolder) -> str | None:
    """Return the template if the settings have none: None for the folder's own, else the paper's first."""
    return None if folder.pooling == MASKED else templates_of(folder)[0]


def set_unregistered(objective: nn.Module, name: str, module: nn.Module) -> None:
    """Set a module as an attribute without registering it, because it shares the encoder's backbone."""
    object.__setattr__(objective, name, module)
