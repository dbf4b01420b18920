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
from pipeline.settings.augment import AugmentSettings, ModelSettings, Proportion
from pipeline.text.tokens.load_tokenizer import read_tokenizer

if TYPE_CHECKING:
    from pipeline.models.mlm_guesses import MaskedText

_WORD = re.compile(r"\S+")
_TOKENIZED_AT_ONCE = 1_024  # texts in one call of the tokenizer


@dataclass(frozen=True)
class WordSpan:
    """A word of a text, without punctuation around it."""

    start: int
    """index of its first character"""
    end: int
    """index after its last character"""
    first_token: int
    """index of its first token"""
    end_token: int
    """index after its last token"""


@dataclass(frozen=True)
class MaskedVariant:
    """A variant whose masked words are still to be guessed, with the model's input."""

    source: int
    """index of its text"""
    number: int
    """number of the variant among the variants of its text, from 0"""
    words: list[WordSpan]
    """the masked words, in the order of the text"""
    masked_text: "MaskedText"


class GuessOptions(Settings):
    """Options of masking and guessing."""

    model: ModelSettings
    """a model with its masked-language-model head, such as bert-base-uncased: BERT, RoBERTa, DistilBERT,
    MPNet or another that transformers loads as a masked language model
    """
    share: Proportion = 0.15
    """proportion of the words that are replaced, rounded; at least one word"""
    top_k: Annotated[int, Field(ge=1)] | None = 10
    """number of the likeliest words among which a guess is drawn; 1: always the likeliest; null: all words"""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    """divides the logits; above 1 unlikely words are drawn more often"""
    other: bool = True
    """whether a guess must differ from the word that is masked"""
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
        self._options, self._seed, self._max_length = options, settings.seed, folder.max_length
        self._backend = read_tokenizer(folder.transformer_path)
        self._backend.no_padding()
        self._backend.no_truncation()
        self._mask_id = self._backend.get_vocab()[mask]
        self._whole_words = _whole_words(self._backend, folder.path)
        self._ids_by_word = defaultdict[str, list[int]](list)
        for number, word in self._whole_words.items():
            self._ids_by_word[word.casefold()].append(number)
        self._choice = GuessChoice(sorted(self._whole_words), options.top_k, options.temperature)
        self._guesser = Guesser(
            folder,
            device,
            settings.dtype,
            batch_tokens=options.model.batch_tokens,
            threads=settings.threads,
        )

    def __call__(self, sources: Sequence[StageInput]) -> Iterator[tuple[int, StageOutput]]:
        began = time.perf_counter()
        variants: list[MaskedVariant] = []
        for start in range(0, len(sources), _TOKENIZED_AT_ONCE):
            part = sources[start : start + _TOKENIZED_AT_ONCE]
            encodings = self._backend.encode_batch([source.text for source in part])
            for index, (source, encoding) in enumerate(zip(part, encodings, strict=True), start):
                if len(encoding.ids) > self._max_length:
                    yield index, StageOutput(reason="too_long_for_model")
                elif words := _word_spans(source.text, encoding):
                    variants += (
                        self._mask_words(index, number, source, encoding.ids, words)
                        for number in range(self._options.count)
                    )
                else:
                    yield index, StageOutput((source.text,) * self._options.count)
        self.stats.seconds += time.perf_counter() - began
        # index of a text -> number of a variant -> variant
        by_source = defaultdict[int, dict[int, str]](dict)
        for batch in self._guesser.batches([variant.masked_text for variant in variants]):
            chosen = [variants[index] for index in batch.indices]
            for variant, text in self._guess(chosen, batch.width, batch.size, sources):
                by_source[variant.source][variant.number] = text
                if len(by_source[variant.source]) == self._options.count:
                    self.stats.texts += 1
                    texts = sorted(by_source.pop(variant.source).items())
                    yield variant.source, StageOutput(tuple(text for _, text in texts))

    def _mask_words(
        self, index: int, number: int, source: StageInput, ids: list[int], words: list[WordSpan]
    ) -> MaskedVariant:
        """Mask random words of a text for one variant: all tokens of a word become one mask token.

        Args:
            index: index of the text.
            number: number of the variant.
            source: the text.
            ids: tokens of the text.
            words: the words that can be masked.
        """
        from pipeline.models.mlm_guesses import MaskedText

        rng = keyed_rng(self._seed, "masked_lm", source.key, number)
        count = edit_count(len(words), self._options.share, None)
        chosen = [words[position] for position in sorted(draw_positions(count, len(words), rng))]
        masked_ids, positions, copied = list[int](), [], 0
        for word in chosen:
            masked_ids += ids[copied : word.first_token]
            positions.append(len(masked_ids))
            masked_ids.append(self._mask_id)
            copied = word.end_token
        masked_ids += ids[copied:]
        excluded = [self._excluded_ids(source.text[word.start : word.end]) for word in chosen]
        masked_text = MaskedText(masked_ids, positions, excluded, rng.random(len(chosen)).tolist())
        return MaskedVariant(index, number, chosen, masked_text)

    def _excluded_ids(self, word: str) -> Sequence[int]:
        """Return the ids that must not replace a word; none if no other id would be left."""
        same = self._ids_by_word[word.casefold()] if self._options.other else []
        return same if len(same) < len(self._whole_words) else []

    def _guess(
        self, variants: list[MaskedVariant], width: int, size: int, sources: Sequence[StageInput]
    ) -> Iterator[tuple[MaskedVariant, str]]:
        """Pair each variant of a batch with its text, in which guesses replace the masked words.

        Args:
            variants: the variants of the batch.
            width: padded length of a row, in tokens.
            size: number of rows of the batch, with dummy rows.
            sources: the texts.
        """
        began = time.perf_counter()
        masks = edit_count(width, self._options.share, None)  # the most that a row of this width can have
        masked_texts = [variant.masked_text for variant in variants]
        guesses = self._guesser.guesses(masked_texts, width, size, masks, self._choice)
        texts = [
            self._insert_guesses(sources[variant.source].text, variant.words, guessed_ids)
            for variant, guessed_ids in zip(variants, guesses, strict=True)
        ]
        tokens_in = sum(len(each.ids) for each in masked_texts)
        self.stats = self.stats.merge(
            ModelStats(
                tokens_in=tokens_in,
                tokens_out=sum(map(len, guesses)),
                padding=size * width - tokens_in,
                seconds=time.perf_counter() - began,
            )
        )
        return zip(variants, texts, strict=True)

    def _insert_guesses(self, text: str, words: list[WordSpan], guessed_ids: list[int]) -> str:
        """Replace the masked words of a text by the guesses."""
        parts, copied = list[str](), 0
        for word, guessed_id in zip(words, guessed_ids, strict=True):
            guess = cased_like(text[word.start : word.end], self._whole_words[guessed_id])
            parts += [text[copied : word.start], guess]
            copied = word.end
        return "".join([*parts, text[copied:]])


def _word_spans(text: str, encoding: Any) -> list[WordSpan]:
    """Return the words of a text that can be masked: words whose tokens belong to no earlier word."""
    offsets, special = encoding.offsets, encoding.special_tokens_mask
    spans, token = [], 0
    for match in _WORD.finditer(text):
        before, word, _ = split_word(match.group())
        start = match.start() + len(before)
        end = start + len(word)
        while token < len(offsets) and (special[token] or offsets[token][1] <= start):
            token += 1
        first_token = token
        while token < len(offsets) and not special[token] and offsets[token][0] < end:
            token += 1
        if word and token > first_token:
            spans.append(WordSpan(start, end, first_token, token))
    return spans


def _whole_words(backend: Any, path: Path) -> dict[int, str]:
    """Map ids to words for the tokens of a vocabulary that are whole words. ModelError if there are none.

    The vocabulary may be WordPiece (## marks the continuation of a word), byte-level BPE or SentencePiece (Ġ
    or ▁ marks the beginning of a word), or a list of words without marks.
    """
    special = {token.content for token in backend.get_added_tokens_decoder().values()}
    tokens = {number: token for token, number in backend.get_vocab().items() if token not in special}
    marks = ("##", "Ġ", "▁")
    mark = next((mark for mark in marks if any(token.startswith(mark) for token in tokens.values())), None)
    if mark in ("Ġ", "▁"):
        tokens = {number: token for number, token in tokens.items() if token.startswith(mark)}
    spelled = {
        number: backend.decode([number]).strip() if mark == "Ġ" else token.removeprefix("▁")
        for number, token in tokens.items()
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
