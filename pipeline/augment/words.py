"""What methods that edit words share: how many of them, which places, how one word takes the place of another,
and where a file is."""

import functools
import re
import unicodedata
from pathlib import Path

import numpy as np

_POSSESSIVE = re.compile(r"(?<=.)['’][sS]$")


def amount(words: int, share: float, exactly: int | None) -> int:
    """How many of a text's words are meant: `exactly` so many, else that share, rounded; one at least."""
    return max(1, round(share * words)) if exactly is None else exactly


def places(count: int, among: int, rng: np.random.Generator) -> list[int]:
    """`count` different places below `among`, all equally likely, in random order: the first steps of a Fisher-Yates shuffle."""
    moved: dict[int, int] = {}
    chosen = []
    for step, drawn in enumerate(rng.random(min(count, among)).tolist()):
        place = step + int(drawn * (among - step))
        chosen.append(moved.get(place, place))
        moved[place] = moved.get(step, step)
    return chosen


@functools.lru_cache(maxsize=1 << 16)
def parted(word: str) -> tuple[str, str, str]:
    """(signs before it, the word itself, signs and a possessive 's behind it); what is signs alone has no word in it."""
    if word.isalnum():
        return "", word, ""
    first, last = 0, len(word)
    while first < last and _is_sign(word[first]):
        first += 1
    while last > first and _is_sign(word[last - 1]):
        last -= 1
    if ending := _POSSESSIVE.search(word[first:last]):
        last = first + ending.start()
    return word[:first], word[first:last], word[last:]


def cased_like(word: str, other: str) -> str:
    """`other` in capitals where `word` is, or with a capital first letter where `word` has one; else as it stands."""
    if len(word) > 1 and word.isupper():
        return other.upper()
    return other[:1].upper() + other[1:] if word[:1].isupper() else other


def in_full(path: str) -> str:
    """The same file or folder for a worker, whose working directory may be another; a URI, and what is not there, as it is."""
    place = Path(path).expanduser()
    return str(place.resolve()) if "://" not in path and place.exists() else path


def _is_sign(character: str) -> bool:
    return unicodedata.category(character)[0] in "PSC"
