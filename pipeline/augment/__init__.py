"""How variants of a text are made. One file per method; the registry finds it.

A method is a settings class: its fields are its options. What edits words is quick and needs no model (`WordAugmenter`); what needs one says which models work on the
texts one after the other (`ModelAugmenter`), so that each can have workers of its own and what it made is kept.

Nothing drawn depends on a worker, on the order or on the neighbours of a row: words are edited by (seed, name of the variant, id, number of the variant). Models draw
by (seed, text_key, number, step), so that a text that comes back on another night, under whatever id, has the variant that it had.
"""

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Protocol

import numpy as np
from pydantic import Field, JsonValue

from pipeline.config import Settings, validated
from pipeline.device import Device
from pipeline.registry import Registry
from pipeline.settings.augment import AugmentSettings, ModelSettings, VariantSettings

Words = list[str]


class Augmenter(Settings):
    """What makes variants of a text."""

    @property
    @abstractmethod
    def variants(self) -> int:
        """How many of each text."""

    def check(self) -> None:
        """ConfigError, DataError or ModelError for options, files or models that cannot be used; before any worker starts. Imports no torch where it can do without."""

    def identity(self) -> JsonValue:
        """All that decides what it makes: its options, and the content of the files that they name instead of their paths."""
        return self.model_dump(mode="json")


AUGMENTERS: Registry[type[Augmenter]] = Registry("augmenter", "pipeline.augment")


class WordAugmenter(Augmenter):
    """What edits the words of a text, which are what stands between white space."""

    count: Annotated[int, Field(ge=1)] = 1
    """variants of each text, drawn independently"""

    @property
    def variants(self) -> int:
        return self.count

    @abstractmethod
    def start(self) -> Callable[[Words, np.random.Generator], Words]:
        """On the worker: what makes the words of one variant, at least one, out of the words of a text, which it does not change; what is heavy is loaded here."""


@dataclass(frozen=True)
class Source:
    """A text that a model works on. key: what its draws go by, the text_key of the row with the number of the variant behind it."""

    text: str
    key: bytes


@dataclass(frozen=True)
class Made:
    """What became of a source: `texts`, as many as the leg makes, or none and why; a single one may be empty."""

    texts: tuple[str, ...] = ()
    reason: str | None = None


@dataclass
class Effort:
    """What a leg did, added up; for reports, never stored."""

    texts: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    padding: int = 0
    """places of source batches that held none of tokens_in"""
    seconds: float = 0.0

    def merge(self, other: "Effort") -> "Effort":
        return Effort(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))


class Working(Protocol):
    """A leg's model, loaded. effort: of all calls so far."""

    effort: Effort

    def __call__(self, sources: Sequence[Source]) -> Iterator[tuple[int, Made]]:
        """(place in `sources`, what became of it), each once, as they are done. Equal sources in equal order give equal results."""
        ...


class Leg(Protocol):
    """One model's work on texts, a value that travels. title: for people, such as en-de; model: which, and what workers it gets; makes: texts of each source."""

    @property
    def title(self) -> str: ...

    @property
    def model(self) -> ModelSettings: ...

    @property
    def makes(self) -> int: ...

    def check(self) -> None:
        """As `Augmenter.check`."""
        ...

    def identity(self) -> JsonValue:
        """As `Augmenter.identity`: the content of the model, no path, and nothing that changes only how fast it works."""
        ...

    def start(self, device: Device, settings: AugmentSettings) -> Working:
        """On the worker: the model, loaded."""
        ...


class ModelAugmenter(Augmenter):
    """What one model after another makes of a text."""

    together: bool = True
    """whether one worker holds all models and takes a unit through them; false: each model has a pool of its own, and a unit passes from one to the next"""

    @abstractmethod
    def legs(self) -> tuple[Leg, ...]:
        """The models in their order; the first one reads the text, each other one what came out before it."""

    @property
    def variants(self) -> int:
        return int(np.prod([leg.makes for leg in self.legs()]))

    def check(self) -> None:
        for leg in self.legs():
            leg.check()

    def identity(self) -> JsonValue:
        return [leg.identity() for leg in self.legs()]


@dataclass(frozen=True)
class Named:
    """An augmenter by the name of its variants."""

    name: str
    settings: VariantSettings
    augmenter: Augmenter = field(compare=False)

    @property
    def labels(self) -> tuple[str, ...]:
        """What stands behind variant_ in the names of its columns."""
        count = self.augmenter.variants
        return (self.name,) if count == 1 else tuple(f"{self.name}_{number + 1}" for number in range(count))


def built(settings: AugmentSettings) -> tuple[Named, ...]:
    """The augmenters of a job, in its order. ConfigError for an unknown method or option."""
    return tuple(
        Named(name, one, validated(AUGMENTERS[one.method], one.options, f"augment.variants.{name}.options"))
        for name, one in settings.variants.items()
    )


def draws(*what: str | int | bytes) -> np.random.Generator:
    """A generator that follows from `what` alone: Philox keyed by the blake2b-128 of it, each part with its length and its kind."""
    state = hashlib.blake2b(digest_size=16)
    for part in what:
        content = part if isinstance(part, bytes) else str(part).encode("utf-8", "surrogatepass")
        state.update(f"{type(part).__name__}{len(content)}:".encode())
        state.update(content)
    return np.random.Generator(np.random.Philox(key=int.from_bytes(state.digest(), "little")))
