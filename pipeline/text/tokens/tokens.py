"""Tokenize texts into ragged arrays of token ids.

There is no padding. Truncated tokens are counted. Only the part of a long text that can fit is tokenized.
"""

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from string import ascii_lowercase
from typing import Literal, NamedTuple

import numpy as np

from pipeline.text.normalize import end_sentence, key_numbers
from pipeline.text.tokens.positions import surroundings, tokens_at

Side = Literal["start", "end"]

SKIPPED_WORD = -1
"""Id that a `TextsToIds` returns for a word without any token in the vocabulary, not even an unknown one."""
# Limits of the texts that are given to the tokenizer's threads at once. Their encodings take about 100 bytes
# a token until they are copied.
_BATCH_TEXTS = 1_024
_BATCH_CHARACTERS = 1 << 20
_CHARACTERS_PER_TOKEN = 8  # first guess of the characters needed to fill max_length; English has 4 to 5


@dataclass(frozen=True)
class Tokens:
    """Token ids of n texts, concatenated, special tokens included.

    The ids of text i are ids[offsets[i]:offsets[i + 1]].
    """

    ids: np.ndarray
    """(tokens,) int32"""
    offsets: np.ndarray
    """(n + 1,) int64"""
    truncated: np.ndarray
    """(n,) bool: the text had more tokens than max_length and lost its end, or its beginning"""
    kept: np.ndarray | None = None
    """(tokens,) bool: tokens that are pooled; None: all"""
    in_template: np.ndarray | None = None
    """(tokens,) bool: tokens of the template, special tokens included; None: no template"""
    absent: np.ndarray | None = None
    """(n, 2) int64: tokens of the text that did not fit, and words that were skipped; None: not counted.

    If the text was not tokenized to its end, the tokens that did not fit are estimated from its characters.
    """
    keys: np.ndarray | None = None
    """(n, 2) uint64: text_key of each text, without the prompt; None: not computed"""
    types: np.ndarray | None = None
    """(tokens,) int64: token types, such as 1 for the second text of a pair; None: all 0"""

    def __len__(self) -> int:
        return len(self.truncated)

    @property
    def lengths(self) -> np.ndarray:
        """(n,) int64: tokens of each text."""
        return np.diff(self.offsets)

    @property
    def owners(self) -> np.ndarray:
        """(tokens,) int64: the text of each token."""
        return np.repeat(np.arange(len(self)), self.lengths)

    @property
    def positions(self) -> np.ndarray:
        """(tokens,) int64: the position of each token in its text, from 0."""
        return np.arange(len(self.ids)) - np.repeat(self.offsets[:-1], self.lengths)

    def outside_text(self, specials: tuple[int, int]) -> np.ndarray:
        """(tokens,) bool: tokens of the template, and special tokens, but not tokens of the text itself.

        Args:
            specials: number of special tokens (before, after) each text; used if there is no template.
        """
        return surroundings(self.offsets, *specials) if self.in_template is None else self.in_template

    def of_rows(self, rows: np.ndarray) -> "Tokens":
        """The tokens of the given texts only, in the order given."""
        lengths = self.lengths[rows]
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        indices = np.arange(offsets[-1]) + np.repeat(self.offsets[rows] - offsets[:-1], lengths)
        return Tokens(
            self.ids[indices],
            offsets,
            self.truncated[rows],
            None if self.kept is None else self.kept[indices],
            None if self.in_template is None else self.in_template[indices],
            None if self.absent is None else self.absent[rows],
            None if self.keys is None else self.keys[rows],
            None if self.types is None else self.types[indices],
        )

    @classmethod
    def joined(cls, parts: Sequence["Tokens"]) -> "Tokens":
        """Concatenate the texts of all parts."""
        lengths = np.concatenate([part.lengths for part in parts])
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        kept = [np.ones(len(part.ids), bool) if part.kept is None else part.kept for part in parts]
        in_template = [part.in_template for part in parts if part.in_template is not None]
        absent = [part.absent for part in parts if part.absent is not None]
        keys = [part.keys for part in parts if part.keys is not None]
        types = [np.zeros(len(part.ids), np.int64) if part.types is None else part.types for part in parts]
        return cls(
            np.concatenate([part.ids for part in parts]),
            offsets,
            np.concatenate([part.truncated for part in parts]),
            np.concatenate(kept) if any(part.kept is not None for part in parts) else None,
            np.concatenate(in_template) if len(in_template) == len(parts) else None,
            np.concatenate(absent) if len(absent) == len(parts) else None,
            np.concatenate(keys) if len(keys) == len(parts) else None,
            np.concatenate(types) if any(part.types is not None for part in parts) else None,
        )


class TokenCounts(NamedTuple):
    """Token counts of n texts."""

    lengths: np.ndarray
    """(n,) int64: tokens of each text as encoded"""
    truncated: np.ndarray
    """(n,) bool: the text had more tokens than fit"""
    content: np.ndarray
    """(n,) int64: tokens of each text itself, without special tokens, template and prompt"""
    unknown: np.ndarray
    """(n,) int64: content tokens that stand for text outside the vocabulary"""
    lost: np.ndarray
    """(n,) int64: tokens of each text that did not fit"""

    def of_rows(self, rows: np.ndarray) -> "TokenCounts":
        """The counts of the given texts, in the order given."""
        return TokenCounts(*(counts[rows] for counts in self))

    @classmethod
    def zeros(cls, count: int) -> "TokenCounts":
        """Counts of `count` texts without tokens."""
        return cls(*(np.zeros(count, bool if name == "truncated" else np.int64) for name in cls._fields))


class TokenTypes(NamedTuple):
    """Token types that a tokenizer gives to a text and the special tokens around it."""

    prefix: tuple[int, ...]
    text: int
    suffix: tuple[int, ...]

    def of_rows(self, offsets: np.ndarray) -> np.ndarray:
        """(tokens,) int64: the type of each token of the rows with these offsets, as in `Tokens`."""
        types = np.full(offsets[-1], self.text, np.int64)
        around = surroundings(offsets, len(self.prefix), len(self.suffix))
        types[around] = np.tile((*self.prefix, *self.suffix), len(offsets) - 1)
        return types


TextsToIds = Callable[[list[str]], list[list[int]]]
"""A function from texts to their token ids, without special tokens."""


@dataclass(frozen=True)
class Tokenizer:
    """Turn texts into `Tokens`: put the prompt before them, tokenize, truncate, add special tokens."""

    to_ids: TextsToIds
    """tokenizes whole texts"""
    prefix: tuple[int, ...]
    """special tokens before every text"""
    suffix: tuple[int, ...]
    """special tokens after every text"""
    max_length: int
    """largest number of tokens of a text, special tokens included"""
    pad_id: int
    prompt: str = ""
    """put before every text; its tokens count against max_length"""
    split_pattern: re.Pattern[str] | None = None
    """Pattern of positions at which a text can be split without changing the tokens of its first part.

    A long text is tokenized only up to such a position; None: texts are tokenized to their end.
    """
    truncation_side: Side = "end"
    """side from which tokens that do not fit are removed, which may be tokens of the prompt"""
    vocabulary: Callable[[], Mapping[str, int]] = dict
    """returns the ids of all tokens by name"""
    largest_id: int | None = None
    """largest id of a token; None: the vocabulary has to be asked"""
    mask: int | None = None
    """Position of the mask token in every row. Only this token is pooled; None: all tokens are pooled.

    The position counts from the row's first token or, if negative, from the row's end.
    """
    ends_sentences: bool = False
    """whether to add a full stop to a text that does not end with one of . ? " '"""
    unknown: tuple[int, ...] = ()
    """ids of the tokens that stand for text outside the vocabulary: the unknown token, and byte tokens"""
    skips_words: bool = False
    """whether `to_ids` returns SKIPPED_WORD for words without any token"""
    keyed: bool = False
    """whether to compute the text_key of each text, for encoders that draw random numbers by it"""
    types: TokenTypes | None = None
    """token types of the tokens; None: all 0"""

    @property
    def max_text_tokens(self) -> int:
        """Largest number of tokens of the text itself: max_length without the special tokens."""
        return self.max_length - len(self.prefix) - len(self.suffix)

    @property
    def prompt_tokens(self) -> int:
        """Number of the prompt's tokens and the special tokens before it; 0 without a prompt."""
        return len(self.prefix) + len(self._prompt_ids) if self.prompt else 0

    @functools.cached_property
    def _prompt_ids(self) -> list[int]:
        if not self.prompt:
            return []
        return self.text_ids([self.prompt.removesuffix(" ") if self.joins_blank else self.prompt])[0]

    @functools.cached_property
    def joins_blank(self) -> bool:
        """True if the blank at the end of the prompt is part of the first token of some texts."""
        if not self.prompt.endswith(" "):
            return False
        alone, *joined = self.text_ids([self.prompt, *(self.prompt + letter for letter in ascii_lowercase)])
        return any(ids[: len(alone)] != alone for ids in joined)

    def text_ids(self, texts: list[str]) -> list[list[int]]:
        """Token ids of each text, without prompt, truncation and special tokens."""
        return self._tokenize(texts)[0]

    def full_lengths(self, texts: Sequence[str]) -> np.ndarray:
        """(n,) int64: number of tokens of each text before truncation, prompt and special tokens included."""
        sentences = map(end_sentence, texts) if self.ends_sentences else texts
        batches = _batches([self.prompt + text for text in sentences])
        contents = [len(ids) for batch in batches for ids in self.text_ids(batch)]
        return np.array(contents, dtype=np.int64) + len(self.prefix) + len(self.suffix)

    def counts(self, tokens: Tokens) -> "TokenCounts":
        """Token counts of the texts that were tokenized to `tokens`."""
        fixed = [*self.prefix, *self._prompt_ids, *self.suffix]  # tokens around every text
        content = np.maximum(tokens.lengths - len(fixed), 0)
        unknown = np.zeros(len(tokens), np.int64)
        if self.unknown:
            sums = np.append(0, np.cumsum(np.isin(tokens.ids, self.unknown), dtype=np.int64))
            unknown = np.diff(sums[tokens.offsets]) - np.isin(fixed, self.unknown).sum()
            unknown = np.clip(unknown, 0, content)
        lost, skipped = np.zeros((2, len(tokens)), np.int64) if tokens.absent is None else tokens.absent.T
        return TokenCounts(tokens.lengths, tokens.truncated, content + skipped, unknown + skipped, lost)

    def __call__(self, texts: Sequence[str]) -> Tokens:
        """Tokenize the texts, in order."""
        contents: list[list[int]] = []
        absent_counts: list[tuple[int, int]] = []
        sentences = map(end_sentence, texts) if self.ends_sentences else texts
        for batch in _batches([self.prompt + text for text in sentences]):
            batch_contents, batch_absent = self._tokenize_contents(batch)
            contents += batch_contents
            absent_counts += batch_absent
        absent = np.array(absent_counts, dtype=np.int64).reshape(-1, 2)
        truncated = absent[:, 0] > 0
        specials = len(self.prefix) + len(self.suffix)
        lengths = np.array([len(content) + specials for content in contents], np.int64)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        ids = np.empty(offsets[-1], np.int32)
        for content, start, end in zip(contents, offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
            ids[start:end] = [*self.prefix, *content, *self.suffix]
        keys = key_numbers(texts) if self.keyed else None
        if self.mask is None:
            types = None if self.types is None else self.types.of_rows(offsets)
            return Tokens(ids, offsets, truncated, absent=absent, keys=keys, types=types)
        kept = tokens_at(offsets, self.mask)
        in_template = surroundings(offsets, len(self.prefix), len(self.suffix))
        return Tokens(ids, offsets, truncated, kept, in_template, absent, keys)

    def _tokenize_contents(self, texts: list[str]) -> tuple[list[list[int]], list[tuple[int, int]]]:
        """Tokenize texts without their special tokens.

        Returns:
            For each text, up to `max_text_tokens` ids from the side that is kept, and (number of tokens that
            do not fit, number of skipped words).
        """
        limit = self.max_text_tokens
        if self.truncation_side == "start":
            # A text can only be split after its beginning, so all of it is tokenized.
            rows, skipped = self._tokenize(texts)
            lost = [max(len(row) - limit, 0) for row in rows]
            return [row[-limit:] for row in rows], list(zip(lost, skipped, strict=True))
        beginnings = [self._beginning(text, _CHARACTERS_PER_TOKEN * self.max_length) for text in texts]
        rows, skipped = self._tokenize(beginnings)
        absent = []
        for row, (text, beginning) in enumerate(zip(texts, beginnings, strict=True)):
            while len(beginning) < len(text) and len(rows[row]) <= limit:
                beginning = self._beginning(text, 4 * len(beginning))
                (rows[row],), (skipped[row],) = self._tokenize([beginning])
            is_complete = len(beginning) == len(text)
            tokens = len(rows[row]) if is_complete else round(len(rows[row]) * len(text) / len(beginning))
            absent.append((max(tokens - limit, 0), skipped[row]))
            del rows[row][limit:]
        return rows, absent

    def _tokenize(self, texts: list[str]) -> tuple[list[list[int]], list[int]]:
        """(token ids, number of skipped words) of each text."""
        rows = self.to_ids(texts)
        if not self.skips_words:
            return rows, [0] * len(rows)
        known = [[id_ for id_ in row if id_ != SKIPPED_WORD] for row in rows]
        return known, [len(row) - len(known_row) for row, known_row in zip(rows, known, strict=True)]

    def _beginning(self, text: str, characters: int) -> str:
        """The text up to the first position at or after `characters` where it can be split, or all of it."""
        if self.split_pattern is None or len(text) <= characters:
            return text
        split = self.split_pattern.search(text, characters)
        return text[: split.start()] if split else text


def _batches(texts: list[str]) -> Iterator[list[str]]:
    """Split texts into batches with limited numbers of texts and characters."""
    batch: list[str] = []
    characters = 0
    for text in texts:
        if batch and (len(batch) == _BATCH_TEXTS or characters + len(text) > _BATCH_CHARACTERS):
            yield batch
            batch, characters = [], 0
        batch.append(text)
        characters += len(text)
    if batch:
        yield batch
