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
# settings of each decoding method, besides the settings that all methods use
_DECODING_OPTIONS = {
    "greedy": (),
    "beam": ("beams", "length_penalty", "hypotheses"),
    "sample": ("temperature", "top_p", "top_k", "hypotheses"),
}


@AUGMENTERS.register("back_translation")
class BackTranslation(ModelAugmenter):
    """Variants of a text by translation into other languages and back."""

    translators: Annotated[tuple[TranslatorSettings, ...], Field(min_length=1, alias="legs")]
    """models in order, usually one into another language and one back, or more for several pivot languages;
    each model reads the output of the previous one
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
        if self.settings.source and self.settings.target:
            return f"{self.settings.source}-{self.settings.target}"
        return PurePosixPath(self.settings.path.rstrip("/")).name

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
        """Everything that decides the translations: the content of the model's folder, and the settings."""
        settings, method = self.settings, self.settings.decoding.method
        used = {"method", "max_ratio", "max_extra", "min_ratio", *_DECODING_OPTIONS[method]}
        # the stage's index seeds the random draws
        number: dict[str, JsonValue] = {"number": self.number} if method == "sample" else {}
        return {
            "engine": _ENGINE,
            "files": open_translator(settings).digests(),
            "source": settings.source,
            "target": settings.target,
            "prefix": settings.prefix,
            "max_length": settings.max_length,
            "decoding": settings.decoding.model_dump(mode="json", include=used),
            **number,
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
        self._samples = stage.settings.decoding.method == "sample"

    def __call__(self, sources: Sequence[StageInput]) -> Iterator[tuple[int, StageOutput]]:
        """Yield translations batch by batch, longest texts first.

        Equal texts are translated once, unless sampling gives each its own translation.
        """
        started = time.perf_counter()
        self.stats.texts += len(sources)
        groups: dict[object, list[int]] = {}
        for index, source in enumerate(sources):
            groups.setdefault((source.text, source.key) if self._samples else source.text, []).append(index)
        for indices, output in self._translate_groups(sources, list(groups.values())):
            self.stats.seconds += time.perf_counter() - started
            for index in indices:
                yield index, output
            started = time.perf_counter()
        self.stats.seconds += time.perf_counter() - started

    def _translate_groups(
        self, sources: Sequence[StageInput], groups: list[list[int]]
    ) -> Iterator[tuple[list[int], StageOutput]]:
        """Yield each group of equal inputs with its output."""
        requests: list[Request] = []
        requested_groups: list[list[int]] = []
        uniforms = self._uniforms(sources) if self._samples else None
        texts = [sources[group[0]].text for group in groups]
        for indices, text, ids in zip(groups, texts, self._translator.tokenizer.tokens(texts), strict=True):
            if not text.strip():
                yield indices, StageOutput(("",) * self._stage.outputs)
            elif len(ids) > self._translator.longest:
                yield indices, StageOutput(reason="too_long_for_model")
            else:
                requests.append(self._translator.request(ids, indices[0], uniforms))
                requested_groups.append(indices)
        for batch, hypotheses in self._translator(requests):
            lengths = [len(requests[index].ids) for index in batch]
            tokens = list(chain.from_iterable(hypotheses))
            self.stats.tokens_in += sum(lengths)
            self.stats.padding += max(lengths) * len(lengths) - sum(lengths)
            self.stats.tokens_out += sum(map(len, tokens))
            translations = iter(self._translator.tokenizer.texts(tokens))
            for index in batch:
                yield requested_groups[index], StageOutput(tuple(islice(translations, self._stage.outputs)))

    def _uniforms(self, sources: Sequence[StageInput]) -> "Uniforms":
        """Return a function that draws one random number for each token of each hypothesis of a source.

        A number depends only on the seed, the source's key, and the indices of the stage and the hypothesis.
        """
        stage_key = (self._seed, "translation", self._stage.number)

        def draw(index: int, length: int) -> np.ndarray:
            generators = (
                keyed_rng(*stage_key, sources[index].key, hypothesis)
                for hypothesis in range(self._stage.outputs)
            )
            return np.stack([generator.random(length) for generator in generators])

        return draw
