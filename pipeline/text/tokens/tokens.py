"""Texts become ragged arrays of token ids: no padding, truncation counted, and no text costs more than its first tokens need."""

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np

Side = Literal["start", "end"]

LEFT_OUT = -1  # in the place of a word that is not known and that no token stands for
_BATCH_TEXTS = 1_024  # handed to the tokenizer's own threads at once
_BATCH_CHARACTERS = 1 << 20  # its encodings take about 100 bytes a token until they are copied out
_CHARACTERS_PER_TOKEN = 8  # first guess of how many characters hold enough tokens; English has 4 to 5
_FINAL = (".", "?", '"', "'")


@dataclass(frozen=True)
class Tokens:
    """Ids of n texts one after another: text i has ids[offsets[i]:offsets[i + 1]], special tokens included."""

    ids: np.ndarray
    """(tokens,) int32"""
    offsets: np.ndarray
    """(n + 1,) int64"""
    truncated: np.ndarray
    """(n,) bool: the text had more tokens than max_length and lost its end, or its beginning"""
    kept: np.ndarray | None = None
    """(tokens,) bool: those that an average takes in, or the one that stands for the text; None: all"""
    around: np.ndarray | None = None
    """(tokens,) bool: those of a template, special tokens included, and not of the text; None where there is no template"""
    absent: np.ndarray | None = None
    """(n, 2) int64: tokens of the text that did not fit, by its characters where it was not read to its end,
    and words that were left out; None: not counted
    """

    def __len__(self) -> int:
        return len(self.truncated)

    @property
    def lengths(self) -> np.ndarray:
        """(n,) int64 tokens of each text."""
        return np.diff(self.offsets)

    def of_rows(self, rows: np.ndarray) -> "Tokens":
        """Those texts alone, in that order."""
        lengths = self.lengths[rows]
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        places = np.arange(offsets[-1]) + np.repeat(self.offsets[rows] - offsets[:-1], lengths)
        kept, around = (None if each is None else each[places] for each in (self.kept, self.around))
        absent = None if self.absent is None else self.absent[rows]
        return Tokens(self.ids[places], offsets, self.truncated[rows], kept, around, absent)

    @classmethod
    def joined(cls, parts: Sequence["Tokens"]) -> "Tokens":
        """The texts of all parts, one part after the other."""
        lengths = np.concatenate([part.lengths for part in parts])
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        everything = all(part.kept is None for part in parts)
        kept = (
            None
            if everything
            else np.concatenate(
                [np.ones(len(part.ids), bool) if part.kept is None else part.kept for part in parts]
            )
        )
        around = [part.around for part in parts if part.around is not None]
        absent = [part.absent for part in parts if part.absent is not None]
        ids, truncated = (
            np.concatenate([part.ids for part in parts]),
            np.concatenate([part.truncated for part in parts]),
        )
        return cls(
            ids,
            offsets,
            truncated,
            kept,
            *(np.concatenate(each) if len(each) == len(parts) else None for each in (around, absent)),
        )


class TokenCounts(NamedTuple):
    """Token counts of n texts."""

    lengths: np.ndarray
    """(n,) int64 tokens of each text as encoded"""
    truncated: np.ndarray
    """(n,) bool: the text had more tokens than fit"""
    content: np.ndarray
    """(n,) int64 tokens of each text itself, without special tokens, template and prompt"""
    unknown: np.ndarray
    """(n,) int64 how many of those stand for what the vocabulary lacks"""
    lost: np.ndarray
    """(n,) int64 tokens of each text that did not fit"""

    def of_rows(self, rows: np.ndarray) -> "TokenCounts":
        """Those of some texts, in that order."""
        return TokenCounts(*(each[rows] for each in self))

    @classmethod
    def none(cls, count: int) -> "TokenCounts":
        """Those of so many texts without a token."""
        return cls(*(np.zeros(count, bool if name == "truncated" else np.int64) for name in cls._fields))


class IdSource(Protocol):
    """Texts to ids without special tokens."""

    def __call__(self, texts: list[str]) -> list[list[int]]: ...


@dataclass(frozen=True)
class Tokenizer:
    """Prompt, tokenize, cut, add special tokens."""

    source: IdSource
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    max_length: int
    pad_id: int
    prompt: str = ""
    seam: re.Pattern[str] | None = None
    """where a text may be cut: its tokens begin with those of each prefix that ends where this matches; None: nowhere"""
    cuts: Side = "end"
    """where a text loses the tokens that do not fit, its prompt's included"""
    vocabulary: Callable[[], Mapping[str, int]] = dict
    """ids of all tokens"""
    mask: int | None = None
    """place in every row of the one mask token that stands for the text, from the row's first token or, below 0, from its end; None: all tokens do"""
    ends_sentences: bool = False
    """whether a text that ends in none of . ? " ' gets a full stop"""
    unknown: tuple[int, ...] = ()
    """ids of the tokens that stand for what the vocabulary lacks: the unknown token, or the bytes of a
    character
    """
    leaves_out: bool = False
    """whether `source` gives LEFT_OUT for words that have no token at all"""

    @property
    def room(self) -> int:
        """Tokens of the text itself that fit beside the special ones."""
        return self.max_length - len(self.prefix) - len(self.suffix)

    @property
    def around(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What stands before and behind every text."""
        return self.prefix, self.suffix

    @property
    def prompt_tokens(self) -> int:
        """Leading tokens of every text that belong to the prompt, the special tokens before it included; 0 without a prompt."""
        return len(self.prefix) + len(self.pieces([self.prompt])[0]) if self.prompt else 0

    def pieces(self, texts: list[str]) -> list[list[int]]:
        """Ids of each whole text, alone: without prompt and special tokens."""
        return self._read(texts)[0]

    def counts(self, tokens: Tokens) -> "TokenCounts":
        """What was read of the texts that became `tokens`."""
        own, own_unknown = self._frame
        content = np.maximum(tokens.lengths - own, 0)
        unknown = np.zeros(len(tokens), np.int64)
        if self.unknown:
            sums = np.concatenate([unknown[:1], np.cumsum(np.isin(tokens.ids, self.unknown), dtype=np.int64)])
            unknown = np.clip(sums[tokens.offsets[1:]] - sums[tokens.offsets[:-1]] - own_unknown, 0, content)
        lost, left_out = np.zeros((2, len(tokens)), np.int64) if tokens.absent is None else tokens.absent.T
        return TokenCounts(tokens.lengths, tokens.truncated, content + left_out, unknown + left_out, lost)

    @functools.cached_property
    def _frame(self) -> tuple[int, int]:
        """Tokens that are the same for every text, and how many of them are unknown."""
        same = [*self.prefix, *(self.pieces([self.prompt])[0] if self.prompt else ()), *self.suffix]
        return len(same), int(np.isin(same, self.unknown).sum())

    def __call__(self, texts: Sequence[str]) -> Tokens:
        """Tokens of every text, in order."""
        rows: list[list[int]] = []
        absent: list[tuple[int, int]] = []
        for batch in _batches(
            [self.prompt + text for text in (map(_ended, texts) if self.ends_sentences else texts)]
        ):
            contents, without = self._contents(batch)
            rows += contents
            absent += without
        missing = np.array(absent, dtype=np.int64).reshape(-1, 2)
        truncated = missing[:, 0] > 0
        ends = (
            len(self.prefix)
            + len(self.suffix)
            + np.fromiter((min(len(row), self.room) for row in rows), dtype=np.int64, count=len(rows))
        )
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(ends)])
        ids = np.empty(offsets[-1], np.int32)
        for row, start, end in zip(rows, offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
            ids[start:end] = [
                *self.prefix,
                *(row[: self.room] if self.cuts == "end" else row[-self.room :]),
                *self.suffix,
            ]
        if self.mask is None:
            return Tokens(ids, offsets, truncated, absent=missing)
        return Tokens(
            ids,
            offsets,
            truncated,
            *framed(offsets, len(self.prefix), len(self.suffix), self.mask),
            absent=missing,
        )

    def _contents(self, texts: list[str]) -> tuple[list[list[int]], list[tuple[int, int]]]:
        """(ids of each text without its special tokens, from the side that is kept: up to `room` of them and
        one more; its tokens that are absent).
        """
        if self.cuts == "start":  # the whole text is read: seams are known from the left alone
            whole, left_out = self._read(texts)
            lost = [max(len(row) - self.room, 0) for row in whole]
            return [row[-self.room - 1 :] for row in whole], list(zip(lost, left_out, strict=True))
        heads = [self._head(text, _CHARACTERS_PER_TOKEN * self.max_length) for text in texts]
        rows, left_out = self._read(heads)
        absent = []
        for place, (text, head) in enumerate(zip(texts, heads, strict=True)):
            while len(head) < len(text) and len(rows[place]) <= self.room:
                head = self._head(text, 4 * len(head))
                (rows[place],), (left_out[place],) = self._read([head])
            there = (
                len(rows[place])
                if len(head) == len(text)
                else round(len(rows[place]) * len(text) / len(head))
            )
            absent.append((max(there - self.room, 0), left_out[place]))
            del rows[place][self.room + 1 :]
        return rows, absent

    def _read(self, texts: list[str]) -> tuple[list[list[int]], list[int]]:
        """(ids, how many words were left out) of each text."""
        rows = self.source(texts)
        if not self.leaves_out:
            return rows, [0] * len(rows)
        known = [[number for number in row if number != LEFT_OUT] for row in rows]
        return known, [len(row) - len(kept) for row, kept in zip(rows, known, strict=True)]

    def _head(self, text: str, characters: int) -> str:
        """The text up to the first seam at `characters` or later; the whole text where there is none."""
        seam = self.seam.search(text, characters) if self.seam and len(text) > characters else None
        return text[: seam.start()] if seam else text


def framed(offsets: np.ndarray, before: int, behind: int, mask: int) -> tuple[np.ndarray, np.ndarray]:
    """(kept, around), each (tokens,) bool, of rows with `before` tokens before the text and `behind` behind it: the one token at `mask` of a row, and all of those."""
    lengths = np.diff(offsets)
    inside = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    left = np.repeat(lengths, lengths) - inside  # tokens from this one to the row's end
    return inside == mask if mask >= 0 else left == -mask, (inside < before) | (left <= behind)


def _ended(text: str) -> str:
    """As the evaluation of PromptBERT (Jiang et al. 2022) does it; an empty text stays empty."""
    return text if not text.strip() or text.rstrip().endswith(_FINAL) else f"{text.rstrip()}."


def _batches(texts: list[str]) -> Iterator[list[str]]:
    """Runs of texts with bounded numbers of texts and characters."""
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
