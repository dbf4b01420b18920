"""Words of a text as a masked language model guesses them (Gao et al. 2021, SimCSE, table 1: MLM 15 %)."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, JsonValue

from pipeline.augment import AUGMENTERS, Leg, ModelAugmenter, Working
from pipeline.augment.words import in_full
from pipeline.config import digest_of
from pipeline.device import Device
from pipeline.errors import ModelError
from pipeline.models.folder.folder import EncoderFolder, open_folder
from pipeline.settings import EncoderSettings
from pipeline.settings.augment import AugmentSettings, ModelSettings, Share
from pipeline.text.tokens.templates import mask_token

_RULES = 1  # part of what a variant is known by: raise it where the same settings begin to give other texts
_HEADED = ("MaskedLM", "PreTraining")  # endings of the names of architectures that have a head over words


@AUGMENTERS.register("masked_lm")
class MaskedLM(ModelAugmenter):
    """The text with some words, drawn, replaced by guesses of a masked language model that sees the others. A word is masked whole, by one mask; what takes its place
    is one whole word of the model's vocabulary. Signs around a word and its capitals stay.
    """

    model: ModelSettings
    """a model with its head over words, such as bert-base-uncased: BERT, RoBERTa, DistilBERT, MPNet or whatever transformers loads as a masked language model"""
    share: Share = 0.15
    """of the words that are replaced, rounded; one at least"""
    top_k: Annotated[int, Field(ge=1)] | None = 10
    """guesses are drawn among so many of the likeliest; 1: the likeliest; null: all"""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    """logits are divided by it"""
    other: bool = True
    """whether a guess has to be another word than the one behind the mask"""
    count: Annotated[int, Field(ge=1)] = 1
    """variants of each text, drawn independently"""

    def legs(self) -> tuple[Leg, ...]:
        return (
            Guess(
                self.model_copy(
                    update={"model": self.model.model_copy(update={"path": in_full(self.model.path)})}
                )
            ),
        )


@dataclass(frozen=True)
class Guess:
    """The only leg of `MaskedLM`."""

    settings: MaskedLM

    @property
    def title(self) -> str:
        return "masked words"

    @property
    def model(self) -> ModelSettings:
        return self.settings.model

    @property
    def makes(self) -> int:
        return self.settings.count

    def check(self) -> None:
        """ModelError for a folder that is no model, one whose config.json says that it has no head over words, and a tokenizer without a mask token."""
        folder = self.folder()
        named = [str(name) for name in folder.config.get("architectures") or []]
        if named and not any(name.endswith(_HEADED) for name in named):
            remedy = "use a model that was saved with its head, such as bert-base-uncased; sentence encoders are saved without"
            raise ModelError(
                str(folder.path),
                "a masked language model: an encoder and its head over words",
                ", ".join(named),
                remedy,
            )
        self.mask(folder)

    def identity(self) -> JsonValue:
        own = self.settings.model_dump(mode="json", exclude={"model", "together"})
        return {"rules": _RULES, "files": digest_of(dict(self.folder().files)), **own}

    def folder(self) -> EncoderFolder:
        """The model's folder, which is read as an encoder's is."""
        return open_folder(EncoderSettings(path=self.model.path))

    def mask(self, folder: EncoderFolder) -> str:
        """The mask token. ModelError where the tokenizer has none."""
        name = mask_token(folder.beside_config(""), folder.tokenizer().vocabulary())
        if name is None:
            raise ModelError(
                str(folder.path),
                "a tokenizer with a mask token, to guess words",
                "none",
                "use a model such as BERT",
            )
        return name

    def start(self, device: Device, settings: AugmentSettings) -> Working:
        from pipeline.augment.guessing import Guessing

        return Guessing(self, device, settings)
