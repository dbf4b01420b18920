"""Replace words by guesses of a masked language model (Gao et al. 2021, SimCSE, table 1: MLM 15 %)."""

from dataclasses import dataclass

from pydantic import JsonValue

from pipeline.augment import AUGMENTERS, LoadedStage, ModelAugmenter, ModelStage
from pipeline.augment.guessing import GuessOptions, LoadedGuesser
from pipeline.config import digest_of
from pipeline.device import Device
from pipeline.errors import ModelError
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.folder import open_folder
from pipeline.models.folder.locate import absolute_path
from pipeline.settings import EncoderSettings
from pipeline.settings.augment import AugmentSettings, ModelSettings
from pipeline.text.tokens.templates import mask_token

_RULES = 1  # part of the identity; increase it when a change of the code gives other texts
_MASKED_LM_ENDINGS = ("MaskedLM", "PreTraining")  # ends of the names of architectures with a masked-LM head


@AUGMENTERS.register("masked_lm")
class MaskedLMAugmenter(ModelAugmenter, GuessOptions):
    """The text with some random words masked and replaced by guesses of a masked language model.

    A word is masked as a whole by one mask token, and replaced by one whole word of the model's vocabulary.
    Punctuation around a word and its capitals are kept.
    """

    def model_stages(self) -> tuple[ModelStage, ...]:
        model = self.model.model_copy(update={"path": absolute_path(self.model.path)})
        return (GuessStage(self.model_copy(update={"model": model})),)


@dataclass(frozen=True)
class GuessStage:
    """The only stage of `MaskedLMAugmenter`."""

    settings: MaskedLMAugmenter

    @property
    def title(self) -> str:
        """Name of the stage for people."""
        return "masked words"

    @property
    def model(self) -> ModelSettings:
        """The model and its workers."""
        return self.settings.model

    @property
    def outputs(self) -> int:
        """Number of variants of each text."""
        return self.settings.count

    def check(self) -> None:
        """Check that the folder has a masked language model and a tokenizer with a mask token.

        Raises:
            ModelError: the folder is not a model, its config.json names an architecture without a head, or
                the tokenizer has no mask token.
        """
        folder = self.folder()
        architectures = [str(name) for name in folder.config.get("architectures") or []]
        if architectures and not any(name.endswith(_MASKED_LM_ENDINGS) for name in architectures):
            raise ModelError(
                str(folder.path),
                "a masked language model: an encoder and its head over words",
                ", ".join(architectures),
                "use a model that was saved with its head, such as bert-base-uncased; "
                "sentence encoders are saved without one",
            )
        self.mask_token(folder)

    def identity(self) -> JsonValue:
        """Everything that decides the outputs: the content of the model's folder, and the options."""
        return {
            "rules": _RULES,
            "files": digest_of(dict(self.folder().files)),
            **self.settings.model_dump(mode="json", exclude={"model", "together"}),
        }

    def folder(self) -> EncoderFolder:
        """The model's folder, opened like an encoder's."""
        return open_folder(EncoderSettings(path=self.model.path))

    def mask_token(self, folder: EncoderFolder) -> str:
        """Return the mask token. ModelError if the tokenizer has none."""
        token = mask_token(folder.transformer_path, folder.tokenizer().vocabulary())
        if token is None:
            raise ModelError(
                str(folder.path),
                "a tokenizer with a mask token, to guess words",
                "a tokenizer without one",
                "use a model such as bert-base-uncased",
            )
        return token

    def start(self, device: Device, settings: AugmentSettings) -> LoadedStage:
        """Load the model."""
        folder = self.folder()
        return LoadedGuesser(folder, self.mask_token(folder), self.settings, device, settings)
