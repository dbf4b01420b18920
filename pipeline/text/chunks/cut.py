"""Cut texts into chunks of limited length, by the tokens of an encoder.

This module is not in `flows`, which alone imports it, because text is processed below that folder.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from pipeline.errors import ConfigError
from pipeline.settings import ChunkSettings
from pipeline.settings.corpus import SMALLEST_CHUNK
from pipeline.text.tokens.tokens import Tokenizer

# Chinese characters, kana, and punctuation of the same width are pieces by themselves, because no white space
# separates words there.
_WIDE = "\u3001-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff01-\uffef\U00020000-\U0003ffff"
_PIECE = re.compile(rf"[{_WIDE}]|[^\s{_WIDE}]+")
# A full stop after a single letter ends an initial or an abbreviation such as "e.g.", not a sentence. A match
# takes all marks in a row, even inside a word: a new search from each mark would take time in proportion to
# the square of their number.
_SENTENCE_END = re.compile(
    r"(?:[.!?\u2026]{2,}+|[!?\u2026]|(?<!\b[^\W\d_])\.)[\"'\u201d\u2019\u00bb)\]]*+(?P<inside>(?!\s))?"
    r"|[\u3002\uff01\uff1f\uff61]++[\u300d\u300f\u201d\u2019\uff09]*+"
)
_PARAGRAPH_END = re.compile(r"(?=\n[^\S\n]*\n)")
_WORD_START = re.compile(r"\S")
_HEADING_OR_FENCE = re.compile(
    r"^ {0,3}(?:(?P<heading>#{1,6})(?=\s|\Z)|(?P<fence>`{3,}|~{3,})(?P<rest>.*))", re.M
)


@dataclass(frozen=True)
class Pieces:
    """The n pieces of a text, in order. Between them is nothing but white space."""

    starts: np.ndarray
    """(n,) int64: position of the first character of each piece"""
    ends: np.ndarray
    """(n,) int64: position after the last character of each piece"""
    ends_sentence: np.ndarray
    """(n,) bool: the piece is the last of a sentence, paragraph or section"""
    ends_section: np.ndarray
    """(n,) bool: the piece is the last of a section, or of the text"""

    @classmethod
    def of(cls, text: str, *, by_headings: bool = False) -> "Pieces":
        """Find the pieces of a text. Without `by_headings`, the whole text is one section.

        >>> pieces = Pieces.of("It rains, e.g. here. Go in!")
        >>> pieces.starts[pieces.ends_sentence].tolist(), pieces.ends[pieces.ends_sentence].tolist()
        ([15, 24], [20, 27])
        """
        spans = np.array([match.span() for match in _PIECE.finditer(text)], dtype=np.int64).reshape(-1, 2)
        starts, ends = np.ascontiguousarray(spans.T)
        ends_section, ends_sentence = np.zeros((2, len(spans)), dtype=bool)
        sections = list(heading_positions(text)) if by_headings else []
        before = np.searchsorted(starts, np.array([*sections, len(text)], dtype=np.int64)) - 1
        ends_section[before[before >= 0]] = True
        stops = np.array([*_sentence_ends(text)], dtype=np.int64)
        before = np.searchsorted(ends, stops, side="right") - 1
        ends_sentence[before[before >= 0]] = True
        return cls(starts, ends, ends_sentence | ends_section, ends_section)

    def divided(self, index: int, parts: int) -> "Pieces":
        """Return all pieces, with piece `index` cut into about `parts` parts of equal length."""
        start, end = self.starts[index], self.ends[index]
        cuts = np.unique(np.linspace(start, end, parts + 1).astype(np.int64))[1:-1]
        return Pieces(
            np.insert(self.starts, index + 1, cuts),
            np.insert(self.ends, index, cuts),
            np.insert(self.ends_sentence, [index] * len(cuts), False),
            np.insert(self.ends_section, [index] * len(cuts), False),
        )

    def words(self, text: str, first: int = 0, stop: int | None = None) -> list[str]:
        """Return pieces `first` to `stop` as strings, with a space before each piece that follows white
        space.

        >>> text = "It rains here"
        >>> Pieces.of(text).words(text)
        ['It', ' rains', ' here']
        """
        starts, ends = self.starts[first:stop], self.ends[first:stop]
        ends_before = self.ends[first - 1 : first] if first else starts[:1]
        after_space = starts > np.append(ends_before, ends[:-1])
        spans = zip(starts.tolist(), ends.tolist(), after_space.tolist(), strict=True)
        return [f" {text[start:end]}" if spaced else text[start:end] for start, end, spaced in spans]


def heading_positions(text: str) -> Iterator[int]:
    r"""Yield the positions of the headings of a Markdown text, except in fenced code blocks.

    A heading is a line that begins with one to six # and white space. Its position is the position of its
    first #.

    >>> list(heading_positions("# One\n```\n# code\n```\n## Two"))
    [0, 21]
    """
    fence = ""
    for match in _HEADING_OR_FENCE.finditer(text):
        marks, rest = match["fence"] or "", match["rest"] or ""
        if fence:
            if marks.startswith(fence) and not rest.strip():
                fence = ""
        elif match["heading"]:
            yield match.start("heading")
        elif not (marks.startswith("`") and "`" in rest):  # with ` after the fence, it is inline code
            fence = marks


def _sentence_ends(text: str) -> Iterator[int]:
    """Yield positions after the last character of a sentence or paragraph.

    A sentence ends with punctuation, unless the next word begins with a lower-case letter.
    """
    for match in _SENTENCE_END.finditer(text):
        if match["inside"] is not None:
            continue
        following = _WORD_START.search(text, match.end())
        if following is None or not following[0].islower():
            yield match.end()
    for match in _PARAGRAPH_END.finditer(text):
        yield match.start()


_TOGETHER = 1 << 22  # characters of texts whose chunks are tokenized together
_MAX_WORDS = 1 << 20  # words whose numbers of tokens are remembered
_LONG_WORD = 64  # characters; the tokens of longer words are not remembered


class Room(NamedTuple):
    """Room in a chunk for text."""

    tokens: int
    """without prompt and special tokens"""
    characters: int


@dataclass
class TextCutter:
    """Cut texts into chunks that fit an encoder.

    A text is cut between its words, whose tokens are counted one by one. Because a tokenizer may combine
    words, the tokens of each chunk are counted, too, and a chunk with too many is shortened. How a text is
    cut depends on this text alone.

    Raises:
        ConfigError: prompt and special tokens leave too little room for a text, or for the overlap.
    """

    settings: ChunkSettings
    tokenizer: Tokenizer
    most: int = field(init=False)
    """largest number of tokens of a chunk, with prompt and special tokens"""
    room: Room = field(init=False)
    _word_tokens: dict[str, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.most = self.settings.max_tokens or self.tokenizer.max_length
        fixed = int(self.tokenizer.full_lengths([""])[0]) + self.tokenizer.ends_sentences
        self.room = Room(self.most - fixed, self.settings.max_characters or 1 << 62)
        least = max(SMALLEST_CHUNK, 2 * self.settings.overlap)
        if self.room.tokens < least:
            raise ConfigError(
                "corpus.chunk",
                f"room for {least} tokens of text in a chunk (and for two times corpus.chunk.overlap)",
                f"{self.room.tokens}: of {self.most} tokens, {fixed} are of the prompt or special",
                "raise corpus.chunk.max_tokens or encoder.max_length, lower corpus.chunk.overlap, or shorten "
                "encoder.prompt",
            )

    def __call__(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return for each text the (start, end) of its chunks, (n, 2) int64, in order.

        Chunks begin and end with a character that is not white space. Only white space is in no chunk.
        """
        spans: list[np.ndarray] = []
        group, size = list[str](), 0
        for text in texts:
            if group and size + len(text) > _TOGETHER:
                spans += self._cut(group)
                group, size = [], 0
            group.append(text)
            size += len(text)
        return spans + self._cut(group)

    def count_words(self, words: Sequence[str]) -> np.ndarray:
        """Return the number of tokens of each word by itself, (n,) int64."""
        counts = self._word_tokens
        if len(counts) > _MAX_WORDS:
            counts.clear()
        new = list(dict.fromkeys(word for word in words if word not in counts))
        counts.update(zip(new, map(len, self.tokenizer.text_ids(new)) if new else (), strict=True))
        found = np.fromiter(map(counts.__getitem__, words), dtype=np.int64, count=len(words))
        for word in (word for word in new if len(word) > _LONG_WORD):
            del counts[word]
        return found

    def _cut(self, texts: Sequence[str]) -> list[np.ndarray]:
        documents = [_Document(self, text) for text in texts]
        pending = documents
        while pending:
            planned = [list(document.plan()) for document in pending]
            chunks = [
                document.text[start:end]
                for document, plan in zip(pending, planned, strict=True)
                for start, end in map(document.span, plan)
            ]
            lengths = iter(self.tokenizer.full_lengths(chunks).tolist())
            for document, plan in zip(pending, planned, strict=True):
                document.accept(plan, [next(lengths) for _ in plan])
            pending = [document for document in pending if not document.is_cut]
        return [np.array(document.spans, dtype=np.int64).reshape(-1, 2) for document in documents]


class _Planned(NamedTuple):
    """A chunk: pieces `first` to `stop` - 1; those below `new` repeat the end of the previous chunk."""

    first: int
    new: int
    stop: int


class _Document:
    """A text that is being cut.

    Attributes:
        spans: (start, end) of each finished chunk.
        next: (first piece of the next chunk, first piece in no finished chunk); they differ by the overlap.
        surplus: tokens by which the next chunk was too long when its tokens were counted.
    """

    def __init__(self, cutter: TextCutter, text: str) -> None:
        self.cutter, self.text = cutter, text
        self.spans: list[tuple[int, int]] = []
        self.next, self.surplus = (0, 0), 0
        pieces = Pieces.of(text, by_headings=cutter.settings.by == "headings")
        self._set(pieces, cutter.count_words(pieces.words(text)))

    def _set(self, pieces: Pieces, tokens: np.ndarray) -> None:
        self.pieces = pieces
        self.tokens_before = np.append(0, np.cumsum(tokens))  # (pieces + 1,)
        self.section_stops = np.flatnonzero(pieces.ends_section) + 1
        self.sentence_stops = np.flatnonzero(pieces.ends_sentence) + 1

    @property
    def is_cut(self) -> bool:
        """True if all pieces are in finished chunks."""
        return self.next[1] == len(self.pieces.starts)

    def span(self, planned: _Planned) -> tuple[int, int]:
        """Return the (start, end) of a planned chunk in the text."""
        return int(self.pieces.starts[planned.first]), int(self.pieces.ends[planned.stop - 1])

    def plan(self) -> Iterator[_Planned]:
        """Yield chunks for the rest of the text, planned by the numbers of tokens of single words."""
        (first, new), room = self.next, self.cutter.room
        room = room._replace(tokens=room.tokens - self.surplus)
        while new < len(self.pieces.starts):
            stop = self._stop(first, new, room)
            if stop is None and first < new:
                first = new  # the repeated pieces leave no room for a new one
                continue
            if stop is None:
                self._divide(new, room)
                continue
            yield _Planned(first, new, stop)
            first, new, room = self._first_after(first, stop), stop, self.cutter.room

    def accept(self, plan: Sequence[_Planned], lengths: Sequence[int]) -> None:
        """Finish the planned chunks up to the first one whose number of tokens is too large."""
        for planned, length in zip(plan, lengths, strict=True):
            start, end = self.span(planned)
            if length > self.cutter.most and end - start > 1:
                self.next = planned.first, planned.new
                self.surplus += length - self.cutter.most
                return
            self.spans.append((start, end))
            self.surplus = 0
        self.next = len(self.pieces.starts), len(self.pieces.starts)

    def _divide(self, index: int, room: Room) -> None:
        """Divide a piece that is too long into pieces of about half of the room."""
        tokens = np.diff(self.tokens_before)
        characters = self.pieces.ends[index] - self.pieces.starts[index]
        parts = max(2, -(-2 * tokens[index] // max(room.tokens, 1)), -(-2 * characters // room.characters))
        pieces = self.pieces.divided(index, int(min(parts, characters)))
        stop = index + 1 + len(pieces.starts) - len(self.pieces.starts)
        # only the new words are counted: a text may have as many long words as chunks
        new = self.cutter.count_words(pieces.words(self.text, index, stop))
        self._set(pieces, np.concatenate([tokens[:index], new, tokens[index + 1 :]]))

    def _stop(self, first: int, new: int, room: Room) -> int | None:
        """Return where a chunk that begins with piece `first` stops; None if it has no room for piece `new`.

        A chunk takes as many sentences as fit. If none fits, or sentences do not matter, it takes as many
        pieces as fit.
        """
        starts, ends = self.pieces.starts, self.pieces.ends
        section_stop = self.section_stops[np.searchsorted(self.section_stops, first, side="right")]
        limit = self.tokens_before[first] + room.tokens
        by_tokens = np.searchsorted(self.tokens_before, limit, side="right") - 1
        by_characters = np.searchsorted(ends, starts[first] + room.characters, side="right")
        stop = int(min(by_tokens, by_characters, section_stop))
        if stop <= new:
            return new + 1 if first == new and ends[new] - starts[new] == 1 else None
        if self.cutter.settings.by != "tokens":
            sentence = np.searchsorted(self.sentence_stops, stop, side="right") - 1
            if sentence >= 0 and self.sentence_stops[sentence] > new:
                return int(self.sentence_stops[sentence])
        return stop

    def _first_after(self, first: int, stop: int) -> int:
        """Return the first piece of the chunk that follows the chunk of pieces `first` to `stop` - 1.

        The new chunk begins as early as possible: it repeats at most `overlap` tokens, and still has room for
        the next piece or sentence.
        """
        overlap, room = self.cutter.settings.overlap, self.cutter.room
        if not overlap or self.pieces.ends_section[stop - 1]:
            return stop
        by_sentences = self.cutter.settings.by != "tokens" and self.pieces.ends_sentence[stop - 1]
        following = stop + 1
        if by_sentences:
            following = self.sentence_stops[np.searchsorted(self.sentence_stops, stop, side="right")]
        tokens, starts = self.tokens_before, self.pieces.starts
        earliest = max(
            first + 1,
            np.searchsorted(tokens, max(tokens[stop] - overlap, tokens[following] - room.tokens)),
            np.searchsorted(starts, self.pieces.ends[following - 1] - room.characters),
        )
        if by_sentences:
            earliest = self.sentence_stops[np.searchsorted(self.sentence_stops, min(earliest, stop))]
        return int(min(earliest, stop))
