"""Base classes of augmenters and of the stages that use models, and their random draws."""

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Protocol

import numpy as np
from pydantic import Field, JsonValue

from pipeline.config import Settings, validated
from pipeline.device import Device
from pipeline.registry import Registry
from pipeline.settings.augment import AugmentSettings, KeepSettings, ModelSettings, VariantSettings

Words = list[str]
Edit = Callable[[Words, np.random.Generator], Words]
"""a function from the words of a text to the words of a variant, which are at least one; it does not change
its argument"""


class Augmenter(Settings):
    """Makes variants of a text."""

    @property
    @abstractmethod
    def variants(self) -> int:
        """Number of variants of each text."""

    def check(self) -> None:
        """Check options, files and models before any worker starts. Imports torch only if it must.

        Raises:
            ConfigError, DataError, ModelError: the options, files or models cannot be used.
        """

    def identity(self) -> JsonValue:
        """Return everything that decides the variants: options, with digests of files instead of paths."""
        return self.model_dump(mode="json")


AUGMENTERS: Registry[type[Augmenter]] = Registry("augmenter", "pipeline.augment")


class WordAugmenter(Augmenter):
    """Edits the words of a text, which are separated by white space."""

    count: Annotated[int, Field(ge=1)] = 1
    """variants of each text, drawn independently"""

    @property
    def variants(self) -> int:
        return self.count

    @abstractmethod
    def start(self) -> Edit:
        """Load the files that the edit needs, on the worker, and return the edit."""


@dataclass(frozen=True)
class StageInput:
    """A text for a model."""

    text: str
    key: bytes
    """seeds the random draws: the row's text_key, followed by the stage and the number of the input text"""


@dataclass(frozen=True)
class StageOutput:
    """The result of a stage for one input: its texts, or the reason why there are none."""

    texts: tuple[str, ...] = ()
    """output texts, as many as the stage's `outputs`; a text may be empty"""
    reason: str | None = None
    """short code, such as too_long_for_model; None if there are texts"""


@dataclass
class ModelStats:
    """Statistics of a stage, summed over its calls; for reports, never stored."""

    texts: int = 0
    tokens_in: int = 0
    """tokens that the model read, without padding"""
    tokens_out: int = 0
    """tokens that the model generated"""
    padding: int = 0
    """padding tokens in the batches that the model read"""
    seconds: float = 0.0

    def merge(self, other: "ModelStats") -> "ModelStats":
        """Add the statistics of two stages or calls."""
        return ModelStats(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))


@dataclass(frozen=True)
class ModelWork:
    """The work of the stages that one worker runs together."""

    title: str
    """name of the variants, with the names of the stages"""
    stats: ModelStats
    seconds: float
    """wall time, including the start of workers"""

    @property
    def padding(self) -> float:
        """Padding as a proportion of all tokens in the batches that the models read."""
        return self.stats.padding / max(self.stats.tokens_in + self.stats.padding, 1)

    def per_s(self, count: int) -> float:
        """Convert a number of texts or tokens to a rate per second, over all workers."""
        return count / max(self.seconds, 1e-9)


class LoadedStage(Protocol):
    """A stage with its model loaded."""

    stats: ModelStats
    """statistics of all calls since the caller last set this attribute"""

    def __call__(self, sources: Sequence[StageInput]) -> Iterator[tuple[int, StageOutput]]:
        """Yield (index in `sources`, output), each index once, in any order.

        Equal inputs in equal order give equal outputs.
        """


class ModelStage(Protocol):
    """Work of one model on texts. Picklable."""

    @property
    def title(self) -> str:
        """Name of the stage for people, such as en-de."""

    @property
    def model(self) -> ModelSettings:
        """The model and its workers."""

    @property
    def outputs(self) -> int:
        """Number of output texts for each input text."""

    def check(self) -> None:
        """Check the model before any worker starts, like `Augmenter.check`."""

    def identity(self) -> JsonValue:
        """Return everything that decides the outputs, like `Augmenter.identity`.

        It includes the content of the model's files, but no path and no setting that only changes the speed.
        """

    def start(self, device: Device, settings: AugmentSettings) -> LoadedStage:
        """Load the model, on the worker."""


class ModelAugmenter(Augmenter):
    """Passes a text through one model after the other."""

    together: bool = True
    """whether one worker holds all models and passes a unit through them. false: each model has a pool of
    workers, and a unit passes from one pool to the next
    """

    @abstractmethod
    def model_stages(self) -> tuple[ModelStage, ...]:
        """Return the models in order. The first reads the text, each later one the previous output."""

    @property
    def variants(self) -> int:
        return int(np.prod([stage.outputs for stage in self.model_stages()]))

    def check(self) -> None:
        for stage in self.model_stages():
            stage.check()

    def identity(self) -> JsonValue:
        return [stage.identity() for stage in self.model_stages()]


@dataclass(frozen=True)
class NamedAugmenter:
    """An augmenter with the name of its variants, and the tests that decide which of them are kept."""

    name: str
    settings: VariantSettings
    keep: KeepSettings
    augmenter: Augmenter

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of the variants in column names: NAME, or NAME_1, NAME_2 ... if each text has several."""
        count = self.augmenter.variants
        return (self.name,) if count == 1 else tuple(f"{self.name}_{number + 1}" for number in range(count))


def build_augmenters(settings: AugmentSettings) -> tuple[NamedAugmenter, ...]:
    """Build the augmenters in the order of the settings. Raises ConfigError if one is unknown."""
    return tuple(
        NamedAugmenter(
            name,
            variant,
            variant.keep or settings.keep,
            validated(AUGMENTERS[variant.method], variant.options, f"augment.variants.{name}.options"),
        )
        for name, variant in settings.variants.items()
    )


def keyed_rng(*key: str | int | bytes) -> np.random.Generator:
    """Make a random generator that depends on the key only: Philox, seeded by the key's blake2b-128.

    Each part of the key is hashed with its type and length.
    """
    state = hashlib.blake2b(digest_size=16)
    for part in key:
        content = part if isinstance(part, bytes) else str(part).encode("utf-8", "surrogatepass")
        state.update(f"{type(part).__name__}{len(content)}:".encode())
        state.update(content)
    return np.random.Generator(np.random.Philox(key=int.from_bytes(state.digest(), "little")))
