"""Words of texts are masked, and what a masked language model guesses in their places is put there. Imports torch where it works."""

import re
import time
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.augment import Effort, Made, Source, draws
from pipeline.augment.words import amount, cased_like, parted, places
from pipeline.device import Device
from pipeline.errors import ModelError
from pipeline.settings.augment import AugmentSettings
from pipeline.text.tokens.templates import fast_tokenizer

if TYPE_CHECKING:
    from pipeline.augment.masked_lm import Guess
    from pipeline.models.mlm_guesses import Blanks

_WORD = re.compile(r"\S+")
_AT_ONCE = 1_024  # texts of one call of the tokenizer


@dataclass(frozen=True)
class Place:
    """A word of a text, by its characters, without the signs around it, and its tokens."""

    first: int
    last: int
    tokens: tuple[int, int]


@dataclass(frozen=True)
class Variant:
    """One on its way: the source's place and the variant's number, the words that are masked, and what the model gets."""

    source: int
    number: int
    chosen: list[Place]
    blanks: "Blanks"


class Guessing:
    """`Working` of `Guess`."""

    def __init__(self, leg: "Guess", device: Device, settings: AugmentSettings) -> None:
        from pipeline.models.mlm_guesses import Choice, Guesser

        folder = leg.folder()
        self.effort = Effort()
        self._options, self._seed, self._limit = leg.settings, settings.seed, folder.max_length
        self._backend = fast_tokenizer(folder.beside_config(""))
        self._backend.no_padding()
        self._backend.no_truncation()
        self._mask = self._backend.get_vocab()[leg.mask(folder)]
        self._words = _words(self._backend, folder.path)
        self._alike = _alike(self._words)
        self._choice = Choice(sorted(self._words), leg.settings.top_k, leg.settings.temperature)
        self._guesser = Guesser(
            folder, device, settings.dtype, batch_tokens=leg.model.batch_tokens, threads=settings.threads
        )

    def __call__(self, sources: Sequence[Source]) -> Iterator[tuple[int, Made]]:
        began = time.perf_counter()
        variants: list[Variant] = []
        for place, found in self._read(sources):
            if isinstance(found, Made):
                yield place, found
            else:
                variants += found
        self.effort.seconds += time.perf_counter() - began
        made: dict[int, dict[int, str]] = {}
        for rows, width, size in self._guesser.batches([variant.blanks for variant in variants]):
            for variant, text in self._guessed([variants[row] for row in rows], width, size, sources):
                of_source = made.setdefault(variant.source, {})
                of_source[variant.number] = text
                if len(of_source) == self._options.count:
                    self.effort.texts += 1
                    yield (
                        variant.source,
                        Made(tuple(text for _, text in sorted(made.pop(variant.source).items()))),
                    )

    def _read(self, sources: Sequence[Source]) -> "Iterator[tuple[int, Made | list[Variant]]]":
        """What each text is masked to, once for every variant; or what becomes of it at once."""
        for start in range(0, len(sources), _AT_ONCE):
            part = sources[start : start + _AT_ONCE]
            for place, (source, encoding) in enumerate(
                zip(part, self._backend.encode_batch([source.text for source in part]), strict=True), start
            ):
                if len(encoding.ids) > self._limit:
                    yield place, Made(reason="too_long_for_model")
                elif words := _places(source.text, encoding):
                    yield (
                        place,
                        [
                            self._masked(place, number, source, encoding.ids, words)
                            for number in range(self._options.count)
                        ],
                    )
                else:
                    yield place, Made((source.text,) * self._options.count)

    def _masked(self, place: int, number: int, source: Source, ids: list[int], words: list[Place]) -> Variant:
        from pipeline.models.mlm_guesses import Blanks

        rng = draws(self._seed, "masked_lm", source.key, number)
        chosen = [
            words[each]
            for each in sorted(places(amount(len(words), self._options.share, None), len(words), rng))
        ]
        masked, at, done = list[int](), [], 0
        for word in chosen:
            masked += [*ids[done : word.tokens[0]], self._mask]
            at.append(len(masked) - 1)
            done = word.tokens[1]
        unwanted = [self._unwanted(source.text[word.first : word.last]) for word in chosen]
        return Variant(
            place,
            number,
            chosen,
            Blanks([*masked, *ids[done:]], at, unwanted, rng.random(len(chosen)).tolist()),
        )

    def _unwanted(self, word: str) -> Sequence[int]:
        alike = self._alike.get(word.casefold(), []) if self._options.other else []
        return alike if len(alike) < len(self._words) else []

    def _guessed(
        self, variants: list[Variant], width: int, size: int, sources: Sequence[Source]
    ) -> Iterator[tuple[Variant, str]]:
        began = time.perf_counter()
        masks = amount(width, self._options.share, None)  # no text of this length has more
        guesses = self._guesser.guesses(
            [variant.blanks for variant in variants], width, size, masks, self._choice
        )
        texts = [
            self._put(sources[variant.source].text, variant.chosen, guess)
            for variant, guess in zip(variants, guesses, strict=True)
        ]
        tokens = sum(len(variant.blanks.ids) for variant in variants)
        self.effort = self.effort.merge(
            Effort(0, tokens, sum(map(len, guesses)), size * width - tokens, time.perf_counter() - began)
        )
        return zip(variants, texts, strict=True)

    def _put(self, text: str, chosen: list[Place], guesses: list[int]) -> str:
        """The text with a guess in each chosen place."""
        parts, done = list[str](), 0
        for word, guess in zip(chosen, guesses, strict=True):
            parts += [text[done : word.first], cased_like(text[word.first : word.last], self._words[guess])]
            done = word.last
        return "".join([*parts, text[done:]])


def _places(text: str, encoding: Any) -> list[Place]:
    """The words of a text that can be masked: those with tokens of their own."""
    offsets, special = encoding.offsets, encoding.special_tokens_mask
    found, token = [], 0
    for match in _WORD.finditer(text):
        before, word, _ = parted(match.group())
        first = match.start() + len(before)
        last = first + len(word)
        while token < len(offsets) and (special[token] or offsets[token][1] <= first):
            token += 1
        begin = token
        while token < len(offsets) and not special[token] and offsets[token][0] < last:
            token += 1
        if word and token > begin:
            found.append(Place(first, last, (begin, token)))
    return found


def _words(backend: Any, path: Path) -> dict[int, str]:
    """The whole words of a vocabulary, of whichever kind: id -> word. ModelError where there is none."""
    special = {token.content for token in backend.get_added_tokens_decoder().values()}
    tokens = {token: number for token, number in backend.get_vocab().items() if token not in special}
    mark = next((mark for mark in ("##", "Ġ", "▁") if any(token.startswith(mark) for token in tokens)), "")
    if mark in (
        "Ġ",
        "▁",
    ):  # which stands before words that a blank goes before; ## before pieces that none goes before
        tokens = {token: number for token, number in tokens.items() if token.startswith(mark)}
    spelled = {
        number: backend.decode([number]).strip() if mark == "Ġ" else token.removeprefix("▁")
        for token, number in tokens.items()
    }
    words = {number: word for number, word in spelled.items() if _is_word(word)}
    if not words:
        raise ModelError(
            str(path), "a vocabulary with whole words, to guess from", "pieces alone", "use another model"
        )
    return words


def _is_word(token: str) -> bool:
    return any(map(str.isalpha, token)) and all(
        character.isalnum() or unicodedata.category(character)[0] == "M" for character in token
    )


def _alike(words: dict[int, str]) -> dict[str, list[int]]:
    """Case-folded word -> its ids."""
    alike: dict[str, list[int]] = {}
    for number, word in words.items():
        alike.setdefault(word.casefold(), []).append(number)
    return alike
