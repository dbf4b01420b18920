"""Mask words of texts and replace them by the guesses of a masked language model.

Torch is imported only when the model is loaded.
"""

import re
import time
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from pipeline.augment import ModelStats, StageInput, StageOutput, keyed_rng
from pipeline.augment.words import cased_like, draw_positions, edit_count, split_word
from pipeline.config import Settings
from pipeline.device import Device
from pipeline.errors import ModelError
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.settings.augment import AugmentSettings, ModelSettings, Share
from pipeline.text.tokens.load_tokenizer import read_tokenizer

if TYPE_CHECKING:
    from pipeline.models.mlm_guesses import MaskedText

_WORD = re.compile(r"\S+")
_TOKENIZED_AT_ONCE = 1_024  # texts in one call of the tokenizer


@dataclass(frozen=True)
class WordSpan:
    """A word of a text, without punctuation around it."""

    first: int
    """index of its first character"""
    last: int
    """index after its last character"""
    tokens: tuple[int, int]
    """its first token, and the one after its last"""


@dataclass(frozen=True)
class MaskedVariant:
    """A variant before the guesses: the masked words, and the model's input."""

    source: int
    """index of its text"""
    number: int
    chosen: list[WordSpan]
    masked_text: "MaskedText"


class GuessOptions(Settings):
    """Options of masking and guessing."""

    model: ModelSettings
    """a model with its masked-language-model head, such as bert-base-uncased: BERT, RoBERTa, DistilBERT,
    MPNet or another that transformers loads as a masked language model
    """
    share: Share = 0.15
    """proportion of the words that are replaced, rounded; at least one word"""
    top_k: Annotated[int, Field(ge=1)] | None = 10
    """guesses are drawn among this many of the likeliest; 1: the likeliest; null: all"""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    """divides the logits; above 1 unlikely words are drawn more often"""
    other: bool = True
    """whether a guess must differ from the word behind the mask"""
    count: Annotated[int, Field(ge=1)] = 1
    """variants of each text, drawn independently"""


class LoadedGuesser:
    """The loaded stage of a masked language model."""

    def __init__(
        self,
        folder: EncoderFolder,
        mask: str,
        options: GuessOptions,
        device: Device,
        settings: AugmentSettings,
    ) -> None:
        from pipeline.models.mlm_guesses import GuessChoice, Guesser

        self.stats = ModelStats()
        self._options, self._seed, self._limit = options, settings.seed, folder.max_length
        self._backend = read_tokenizer(folder.beside_config(""))
        self._backend.no_padding()
        self._backend.no_truncation()
        self._mask = self._backend.get_vocab()[mask]
        self._whole_words = _whole_words(self._backend, folder.path)
        self._ids_by_word = defaultdict[str, list[int]](list)
        for number, word in self._whole_words.items():
            self._ids_by_word[word.casefold()].append(number)
        self._choice = GuessChoice(sorted(self._whole_words), options.top_k, options.temperature)
        tokens = options.model.batch_tokens
        self._guesser = Guesser(folder, device, settings.dtype, batch_tokens=tokens, threads=settings.threads)

    def __call__(self, sources: Sequence[StageInput]) -> Iterator[tuple[int, StageOutput]]:
        began = time.perf_counter()
        variants: list[MaskedVariant] = []
        for start in range(0, len(sources), _TOKENIZED_AT_ONCE):
            part = sources[start : start + _TOKENIZED_AT_ONCE]
            encodings = self._backend.encode_batch([source.text for source in part])
            for index, (source, encoding) in enumerate(zip(part, encodings, strict=True), start):
                if len(encoding.ids) > self._limit:
                    yield index, StageOutput(reason="too_long_for_model")
                elif words := _word_spans(source.text, encoding):
                    variants += (
                        self._mask_words(index, number, source, encoding.ids, words)
                        for number in range(self._options.count)
                    )
                else:
                    yield index, StageOutput((source.text,) * self._options.count)
        self.stats.seconds += time.perf_counter() - began
        made = defaultdict[int, dict[int, str]](dict)
        for rows, width, size in self._guesser.batches([variant.masked_text for variant in variants]):
            for variant, text in self._guess([variants[row] for row in rows], width, size, sources):
                made[variant.source][variant.number] = text
                if len(made[variant.source]) == self._options.count:
                    self.stats.texts += 1
                    texts = sorted(made.pop(variant.source).items())
                    yield variant.source, StageOutput(tuple(text for _, text in texts))

    def _mask_words(
        self, index: int, number: int, source: StageInput, ids: list[int], words: list[WordSpan]
    ) -> MaskedVariant:
        """Mask random words of a text for one variant."""
        from pipeline.models.mlm_guesses import MaskedText

        rng = keyed_rng(self._seed, "masked_lm", source.key, number)
        count = edit_count(len(words), self._options.share, None)
        chosen = [words[position] for position in sorted(draw_positions(count, len(words), rng))]
        masked, positions, done = list[int](), [], 0
        for word in chosen:
            masked += [*ids[done : word.tokens[0]], self._mask]
            positions.append(len(masked) - 1)
            done = word.tokens[1]
        excluded = [self._excluded_ids(source.text[word.first : word.last]) for word in chosen]
        masked_text = MaskedText(
            [*masked, *ids[done:]], positions, excluded, rng.random(len(chosen)).tolist()
        )
        return MaskedVariant(index, number, chosen, masked_text)

    def _excluded_ids(self, word: str) -> Sequence[int]:
        """Ids that may not be guessed in place of a word."""
        same = self._ids_by_word[word.casefold()] if self._options.other else []
        return same if len(same) < len(self._whole_words) else []

    def _guess(
        self, variants: list[MaskedVariant], width: int, size: int, sources: Sequence[StageInput]
    ) -> Iterator[tuple[MaskedVariant, str]]:
        """Guess the masked words of one batch of `size` rows, padded to `width` tokens."""
        began = time.perf_counter()
        masks = edit_count(width, self._options.share, None)  # no row of this length has more
        masked_text = [variant.masked_text for variant in variants]
        guesses = self._guesser.guesses(masked_text, width, size, masks, self._choice)
        texts = [
            self._insert_guesses(sources[variant.source].text, variant.chosen, guess)
            for variant, guess in zip(variants, guesses, strict=True)
        ]
        tokens = sum(len(each.ids) for each in masked_text)
        self.stats = self.stats.merge(
            ModelStats(0, tokens, sum(map(len, guesses)), size * width - tokens, time.perf_counter() - began)
        )
        return zip(variants, texts, strict=True)

    def _insert_guesses(self, text: str, chosen: list[WordSpan], guesses: list[int]) -> str:
        """The text with the guesses in place of the masked words."""
        parts, done = list[str](), 0
        for word, guess in zip(chosen, guesses, strict=True):
            original = text[word.first : word.last]
            parts += [text[done : word.first], cased_like(original, self._whole_words[guess])]
            done = word.last
        return "".join([*parts, text[done:]])


def _word_spans(text: str, encoding: Any) -> list[WordSpan]:
    """The words of a text that can be masked: those with tokens of their own."""
    offsets, special = encoding.offsets, encoding.special_tokens_mask
    found, token = [], 0
    for match in _WORD.finditer(text):
        before, word, _ = split_word(match.group())
        first = match.start() + len(before)
        last = first + len(word)
        while token < len(offsets) and (special[token] or offsets[token][1] <= first):
            token += 1
        begin = token
        while token < len(offsets) and not special[token] and offsets[token][0] < last:
            token += 1
        if word and token > begin:
            found.append(WordSpan(first, last, (begin, token)))
    return found


def _whole_words(backend: Any, path: Path) -> dict[int, str]:
    """The whole words of a vocabulary of any kind: id -> word. ModelError if there are none."""
    special = {token.content for token in backend.get_added_tokens_decoder().values()}
    tokens = {token: number for token, number in backend.get_vocab().items() if token not in special}
    mark = next((mark for mark in ("##", "Ġ", "▁") if any(token.startswith(mark) for token in tokens)), "")
    if mark in ("Ġ", "▁"):  # marks the beginning of a word; ## marks the continuation of one
        tokens = {token: number for token, number in tokens.items() if token.startswith(mark)}
    spelled = {
        number: backend.decode([number]).strip() if mark == "Ġ" else token.removeprefix("▁")
        for token, number in tokens.items()
    }
    words = {number: word for number, word in spelled.items() if _is_word(word)}
    if not words:
        raise ModelError(
            str(path),
            "a vocabulary with whole words, to guess from",
            "only pieces of words",
            "use another model",
        )
    return words


def _is_word(token: str) -> bool:
    return any(map(str.isalpha, token)) and all(
        character.isalnum() or unicodedata.category(character)[0] == "M" for character in token
    )
