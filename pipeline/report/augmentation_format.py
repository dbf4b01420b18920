"""Formats of the page of an augmented corpus: marked words, proportions, excerpts."""

import unicodedata
from collections.abc import Iterable
from difflib import SequenceMatcher

from markupsafe import Markup, escape

from pipeline.charts.frame import percent

_LETTERS = 400  # characters of a text that are shown


def marked(variant: str, text: str) -> Markup:
    """Mark words that were added to a variant, and strike through words that were removed from the text.

    Case and punctuation are ignored. Only the beginnings of long texts are compared.
    """
    old, new = shortened(text).split(), shortened(variant).split()
    matcher = SequenceMatcher(
        None, [_bare(word) for word in old], [_bare(word) for word in new], autojunk=False
    )
    words: list[Markup] = []
    for kind, start, stop, first, last in matcher.get_opcodes():
        if kind == "equal":
            words += map(escape, new[first:last])
            continue
        words += [Markup("<del>{}</del>").format(" ".join(old[start:stop]))] * (stop > start)
        words += [Markup("<mark>{}</mark>").format(" ".join(new[first:last]))] * (last > first)
    return Markup(" ").join(words)


def proportion(value: float) -> str:
    """Format a proportion: 0.975 -> 97.5 %; 0 % and 100 % are exact."""
    text = "< 0.1 %" if 0 < value < 0.001 else "> 99.9 %" if 0.999 < value < 1 else percent(value)
    return text.replace(" ", "\u00a0")


def _bare(word: str) -> str:
    return "".join(
        letter
        for letter in unicodedata.normalize("NFKC", word).casefold()
        if unicodedata.category(letter)[0] != "P"
    )


def plain(name: str) -> str:
    """Replace underscores: too_long_for_model -> too long for model."""
    return name.replace("_", " ")


def shortened(text: str) -> str:
    return text if len(text) <= _LETTERS else text[: _LETTERS - 1] + "…"


def alternatives(words: Iterable[str]) -> str:
    """Join distinct words: 0.4 or 0.5."""
    return " or ".join(dict.fromkeys(words))
