"""Paraphrase by translating into another language and back (Sennrich et al. 2016; CERT, Fang et al. 2020)."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import Field, JsonValue

from pipeline.augment import (
    AUGMENTERS,
    ModelAugmenter,
    ModelStage,
    ModelStats,
    StageInput,
    StageOutput,
    keyed_rng,
)
from pipeline.device import Device
from pipeline.models.folder.locate import absolute_path
from pipeline.models.translation.seq2seq import check_languages, check_weights, open_translator
from pipeline.settings.augment import AugmentSettings, ModelSettings, TranslatorSettings

if TYPE_CHECKING:
    from pipeline.models.translation.decode import Request
    from pipeline.models.translation.translate import Translator, Uniforms

_ENGINE = 1  # part of the identity: raise it when the same settings begin to give other texts
# settings that a decoding method uses, besides those that all use
_DECODING_OPTIONS = {
    "greedy": (),
    "beam": ("beams", "length_penalty", "hypotheses"),
    "sample": ("temperature", "top_p", "top_k", "hypotheses"),
}


@AUGMENTERS.register("back_translation")
class BackTranslation(ModelAugmenter):
    """Variants of a text by translation into other languages and back."""

    translators: Annotated[tuple[TranslatorSettings, ...], Field(min_length=1, alias="legs")]
    """models in order, usually one forward and one backward; more of them for several pivot languages. Each
    model reads the output of its predecessor
    """

    def model_stages(self) -> tuple[ModelStage, ...]:
        return tuple(
            TranslationStage(settings.model_copy(update={"path": absolute_path(settings.path)}), number)
            for number, settings in enumerate(self.translators)
        )


@dataclass(frozen=True)
class TranslationStage:
    """One model of the chain."""

    settings: TranslatorSettings
    number: int = 0
    """index in the chain"""

    @property
    def title(self) -> str:
        """The languages, such as en-de; the name of the folder if they are not set."""
        own = self.settings
        if own.source and own.target:
            return f"{own.source}-{own.target}"
        return PurePosixPath(own.path.rstrip("/")).name

    @property
    def model(self) -> ModelSettings:
        """The translator and its workers."""
        return self.settings

    @property
    def outputs(self) -> int:
        """Number of translations of each text."""
        return self.settings.decoding.hypotheses

    def check(self) -> None:
        """Check the files and the languages; ModelError if they cannot be used."""
        folder = open_translator(self.settings)
        check_weights(folder)
        check_languages(folder, self.settings)

    def identity(self) -> JsonValue:
        """The content of the folder and the settings that decide a translation."""
        own = self.settings
        used = {"method", "max_ratio", "max_extra", "min_ratio", *_DECODING_OPTIONS[own.decoding.method]}
        sampled: dict[str, JsonValue] = {"number": self.number} if own.decoding.method == "sample" else {}
        return {
            "engine": _ENGINE,
            "files": open_translator(own).digests(),
            "source": own.source,
            "target": own.target,
            "prefix": own.prefix,
            "max_length": own.max_length,
            "decoding": own.decoding.model_dump(mode="json", include=used),
            **sampled,
        }

    def start(self, device: Device, settings: AugmentSettings) -> "LoadedTranslator":
        """Load the model."""
        import torch

        from pipeline.models.translation.translate import Translator

        if device.kind == "cpu":
            torch.set_num_threads(settings.threads)
        translator = Translator(open_translator(self.settings), self.settings, device, settings.dtype)
        return LoadedTranslator(translator, self, settings.seed)


class LoadedTranslator:
    """A translation stage with its model loaded."""

    def __init__(self, translator: "Translator", stage: TranslationStage, seed: int) -> None:
        self.stats = ModelStats()
        self._translator, self._stage, self._seed = translator, stage, seed
        self._sampled = stage.settings.decoding.method == "sample"

    def __call__(self, sources: Sequence[StageInput]) -> Iterator[tuple[int, StageOutput]]:
        """Yield translations batch by batch, longest texts first.

        Equal texts are translated once, unless sampling gives each its own translation.
        """
        started = time.perf_counter()
        self.stats.texts += len(sources)
        groups: dict[object, list[int]] = {}
        for index, source in enumerate(sources):
            groups.setdefault((source.text, source.key) if self._sampled else source.text, []).append(index)
        for indices, made in self._translate_groups(sources, list(groups.values())):
            self.stats.seconds += time.perf_counter() - started
            for index in indices:
                yield index, made
            started = time.perf_counter()
        self.stats.seconds += time.perf_counter() - started

    def _translate_groups(
        self, sources: Sequence[StageInput], groups: list[list[int]]
    ) -> Iterator[tuple[list[int], StageOutput]]:
        """Yield each group of equal inputs with its output."""
        requests: list[Request] = []
        requested: list[list[int]] = []
        uniforms = self._uniforms(sources) if self._sampled else None
        texts = [sources[group[0]].text for group in groups]
        for indices, text, ids in zip(groups, texts, self._translator.wording.tokens(texts), strict=True):
            if not text.strip():
                yield indices, StageOutput(("",) * self._stage.outputs)
            elif len(ids) > self._translator.longest:
                yield indices, StageOutput(reason="too_long_for_model")
            else:
                requests.append(self._translator.request(ids, indices[0], uniforms))
                requested.append(indices)
        for batch, written in self._translator(requests):
            lengths = [len(requests[index].ids) for index in batch]
            tokens = list(chain.from_iterable(written))
            self.stats.tokens_in += sum(lengths)
            self.stats.padding += max(lengths) * len(lengths) - sum(lengths)
            self.stats.tokens_out += sum(map(len, tokens))
            made = iter(self._translator.wording.texts(tokens))
            for index in batch:
                yield requested[index], StageOutput(tuple(islice(made, self._stage.outputs)))

    def _uniforms(self, sources: Sequence[StageInput]) -> "Uniforms":
        """Return a function that draws one random number for each token of each hypothesis of a source.

        It depends on the seed, the input's key, and the numbers of the stage and the hypothesis only.
        """
        key, numbers = (self._seed, "translation", self._stage.number), range(self._stage.outputs)
        return lambda index, length: np.stack(
            [keyed_rng(*key, sources[index].key, number).random(length) for number in numbers]
        )
