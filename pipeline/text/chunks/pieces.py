"""Pieces of a text between which it can be cut: its words, with the ends of sentences and of sections."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

# Chinese characters, kana, and punctuation of the same width are pieces by themselves: no white space is
# between their words.
_WIDE = "\u3001-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff01-\uffef\U00020000-\U0003ffff"
_PIECE = re.compile(rf"[{_WIDE}]|[^\s{_WIDE}]+")
# A full stop after a single letter ends an initial or an abbreviation such as "e.g.", not a sentence. A match
# takes all marks in a row, also those inside a word: a search that began again at each would take time
# in proportion to the square of their number.
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
        """Find the pieces of a text; unless it is divided by headings, it is one section.

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
        """Return the pieces with piece `index` cut in about `parts` parts of equal length."""
        start, end = self.starts[index], self.ends[index]
        cuts = np.unique(np.linspace(start, end, parts + 1).astype(np.int64))[1:-1]
        return Pieces(
            np.insert(self.starts, index + 1, cuts),
            np.insert(self.ends, index, cuts),
            np.insert(self.ends_sentence, [index] * len(cuts), False),
            np.insert(self.ends_section, [index] * len(cuts), False),
        )

    def words(self, text: str, first: int = 0, stop: int | None = None) -> list[str]:
        """Return pieces `first` to `stop` as strings, with one space before those that follow white space.

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
    r"""Yield the positions of the lines of a Markdown text that are headings, outside of fenced code blocks.

    A heading is a line that begins with one to six # and white space. The position is that of its first #.

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
        elif not (marks.startswith("`") and "`" in rest):  # such a line is code within a paragraph
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
