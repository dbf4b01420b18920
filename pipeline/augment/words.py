"""Edits of words: how many, at which positions, and how one word replaces another."""

import functools
import re
import unicodedata

import numpy as np

_POSSESSIVE = re.compile(r"(?<=.)['’][sS]$")


def edit_count(words: int, proportion: float, count: int | None) -> int:
    """Return how many of `words` words to edit: `count`, else the rounded proportion, but at least one."""
    return max(1, round(proportion * words)) if count is None else count


def draw_positions(count: int, among: int, rng: np.random.Generator) -> list[int]:
    """Draw `count` different positions below `among`, all equally likely, in random order.

    These are the first steps of a Fisher-Yates shuffle.
    """
    moved: dict[int, int] = {}
    chosen = []
    for step, drawn in enumerate(rng.random(min(count, among)).tolist()):
        position = step + int(drawn * (among - step))
        chosen.append(moved.get(position, position))
        moved[position] = moved.get(step, step)
    return chosen


@functools.lru_cache(maxsize=1 << 16)
def split_word(word: str) -> tuple[str, str, str]:
    """Split a word into (punctuation before it, the word, punctuation and a possessive 's after it).

    The middle part is empty if there is only punctuation.
    """
    if word.isalnum():
        return "", word, ""
    first, last = 0, len(word)
    while first < last and _is_punctuation(word[first]):
        first += 1
    while last > first and _is_punctuation(word[last - 1]):
        last -= 1
    if ending := _POSSESSIVE.search(word[first:last]):
        last = first + ending.start()
    return word[:first], word[first:last], word[last:]


def cased_like(word: str, other: str) -> str:
    """Write `other` in capitals, or with a capital first letter, if `word` is written so."""
    if len(word) > 1 and word.isupper():
        return other.upper()
    return other[:1].upper() + other[1:] if word[:1].isupper() else other


def _is_punctuation(character: str) -> bool:
    return unicodedata.category(character)[0] in "PSC"
