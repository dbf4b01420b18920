"""Paraphrases by translation into another language and back (Sennrich et al. 2016; as positives: CERT, Fang et al. 2020)."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import Field, JsonValue

from pipeline.augment import AUGMENTERS, Effort, Leg, Made, ModelAugmenter, Source, draws
from pipeline.device import Device
from pipeline.models.translation.seq2seq import anywhere, check_languages, check_weights, open_translator
from pipeline.settings.augment import AugmentSettings, DecodingSettings, ModelSettings, TranslatorSettings

if TYPE_CHECKING:
    from pipeline.models.translation.decode import Request
    from pipeline.models.translation.translate import Translator, Uniforms

_ENGINE = (
    1  # part of what a translation is known by: raise it where the same settings begin to give other texts
)


@AUGMENTERS.register("back_translation")
class BackTranslation(ModelAugmenter):
    """Variants of a text by way of other languages."""

    translators: Annotated[tuple[TranslatorSettings, ...], Field(min_length=1, alias="legs")]
    """models in their order, usually one forward and one backward; more of them for several pivot languages. Each takes what the one before it wrote"""

    def legs(self) -> tuple[Leg, ...]:
        return tuple(
            Translation(anywhere(settings), number) for number, settings in enumerate(self.translators)
        )


@dataclass(frozen=True)
class Translation:
    """One model's turn; number: which one of its chain it is."""

    settings: TranslatorSettings
    number: int = 0

    @property
    def title(self) -> str:
        own = self.settings
        return (
            f"{own.source}-{own.target}"
            if own.source and own.target
            else PurePosixPath(own.path.rstrip("/")).name
        )

    @property
    def model(self) -> ModelSettings:
        return self.settings

    @property
    def makes(self) -> int:
        return self.settings.decoding.hypotheses

    def check(self) -> None:
        folder = open_translator(self.settings)
        check_weights(folder)
        check_languages(folder, self.settings)

    def identity(self) -> JsonValue:
        own = self.settings
        sampled: dict[str, JsonValue] = {"number": self.number} if own.decoding.method == "sample" else {}
        return {
            "engine": _ENGINE,
            "files": open_translator(own).digests(),
            "source": own.source,
            "target": own.target,
            "prefix": own.prefix,
            "max_length": own.max_length,
            "decoding": _deciding(own.decoding),
            **sampled,
        }

    def start(self, device: Device, settings: AugmentSettings) -> "Translating":
        import torch

        from pipeline.models.translation.translate import Translator

        if device.kind == "cpu":
            torch.set_num_threads(settings.threads)
        return Translating(
            Translator(open_translator(self.settings), self.settings, device, settings.dtype),
            self,
            settings.seed,
        )


_DECIDING = {
    "greedy": (),
    "beam": ("beams", "length_penalty", "hypotheses"),
    "sample": ("temperature", "top_p", "top_k", "hypotheses"),
}


def _deciding(decoding: DecodingSettings) -> JsonValue:
    """The settings that the method looks at."""
    return decoding.model_dump(
        mode="json", include={"method", "max_ratio", "max_extra", "min_ratio", *_DECIDING[decoding.method]}
    )


class Translating:
    """A leg at work."""

    def __init__(self, translator: "Translator", leg: Translation, seed: int) -> None:
        self.effort = Effort()
        self._translator, self._leg, self._seed = translator, leg, seed
        self._sampled = leg.settings.decoding.method == "sample"

    def __call__(self, sources: Sequence[Source]) -> Iterator[tuple[int, Made]]:
        """Longest texts first, batch by batch. A text that several sources have is translated once, unless draws tell them apart."""
        begun = time.perf_counter()
        self.effort.texts += len(sources)
        alike: dict[object, list[int]] = {}
        for place, source in enumerate(sources):
            alike.setdefault((source.text, source.key) if self._sampled else source.text, []).append(place)
        for places, made in self._made(sources, list(alike.values())):
            self.effort.seconds += time.perf_counter() - begun
            for place in places:
                yield place, made
            begun = time.perf_counter()
        self.effort.seconds += time.perf_counter() - begun

    def _made(self, sources: Sequence[Source], groups: list[list[int]]) -> Iterator[tuple[list[int], Made]]:
        """What became of the first of each group."""
        asked: list[tuple[list[int], Request]] = []
        for places, ids in zip(
            groups, self._translator.tokens([sources[group[0]].text for group in groups]), strict=True
        ):
            if not sources[places[0]].text.strip():
                yield places, Made(("",) * self._leg.makes)
            elif len(ids) > self._translator.longest:
                yield places, Made(reason="too_long_for_model")
            else:
                asked.append(
                    (
                        places,
                        self._translator.request(
                            ids, places[0], self._uniforms(sources) if self._sampled else None
                        ),
                    )
                )
        yield from self._translated(asked)

    def _translated(self, asked: "list[tuple[list[int], Request]]") -> Iterator[tuple[list[int], Made]]:
        requests = [request for _, request in asked]
        for batch, written in self._translator(requests):
            lengths = [len(requests[place].ids) for place in batch]
            self.effort.tokens_in += sum(lengths)
            self.effort.padding += max(lengths) * len(lengths) - sum(lengths)
            self.effort.tokens_out += sum(len(tokens) for hypotheses in written for tokens in hypotheses)
            texts = iter(self._translator.texts([tokens for hypotheses in written for tokens in hypotheses]))
            for place in batch:
                yield asked[place][0], Made(tuple(next(texts) for _ in range(self._leg.makes)))

    def _uniforms(self, sources: Sequence[Source]) -> "Uniforms":
        """One number for each token of each hypothesis, which follows from the seed, the source's key and both their numbers alone."""
        return lambda place, most: np.stack(
            [
                draws(self._seed, "translation", self._leg.number, sources[place].key, hypothesis).random(
                    most
                )
                for hypothesis in range(self._leg.makes)
            ]
        )
