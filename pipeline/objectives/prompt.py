"""Unsupervised PromptBERT (Jiang et al. 2022, section 4): a sentence finds itself among others, seen through another template."""

from collections.abc import Sequence
from typing import Annotated, cast

from pydantic import Field
from torch import Tensor, nn

from pipeline.losses import info_nce
from pipeline.models.folder.folder import MASKED, EncoderFolder
from pipeline.models.trainable.encoder import TrainableEncoder
from pipeline.models.trainable.heads import HeadName, head_of
from pipeline.models.trainable.prompted import PromptedEncoder
from pipeline.objectives import OBJECTIVES, Batch, Loss, Objective, Positive, Product, View

Limit = Annotated[int, Field(ge=1)]
_TEMPLATES = ('This sentence of "[X]" means [MASK].', 'This sentence : "[X]" means [MASK].')
_OF_ROBERTA = ("This sentence : '[X]' means [MASK].", "The sentence : '[X]' means [MASK].")


@OBJECTIVES.register("prompt")
class Prompt(Objective):
    """Each text is read at the masks of two templates in one pass, less what each template alone gives there; candidates of the first are the second ones, of all ranks.

    templates: None, the paper's for the encoder's family. limit: tokens of a text. denoise: whether what the template alone gives is taken off. The product reads the
    first template's mask as it is: neither head nor de-noising.
    """

    columns = ("text",)
    reads_folder = True
    positives = True
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
        beside(self, "_reading", PromptedEncoder(trained, first, limit=limit, denoise=denoise))
        beside(self, "_product", PromptedEncoder(trained, first, limit=limit, denoise=False))
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
                offset=batch.first,
            )
        )

    def product(self) -> Product:
        return Product(self._product)


def templates_of(folder: EncoderFolder) -> tuple[str, str]:
    """The two that the paper found for BERT, or for RoBERTa."""
    return _OF_ROBERTA if folder.family == "roberta" else _TEMPLATES


def own_or_first(folder: EncoderFolder) -> str | None:
    """The template to read where none is named: None, the folder's own, where it has one."""
    return None if folder.pooling == MASKED else templates_of(folder)[0]


def beside(objective: nn.Module, name: str, module: nn.Module) -> None:
    """An attribute that is no part of the objective: another reading of the encoder's backbone, which a state has once."""
    object.__setattr__(objective, name, module)
