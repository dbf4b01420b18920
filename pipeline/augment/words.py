"""Choose the words of a text that an edit changes, and separate a word from its punctuation and case."""

import functools
import re
import unicodedata

import numpy as np

_POSSESSIVE = re.compile(r"(?<=.)['’][sS]$")


def edit_count(word_count: int, proportion: float, count: int | None) -> int:
    """Return the number of words to edit: `count` if it is set, else the rounded proportion, at least one."""
    return max(1, round(proportion * word_count)) if count is None else count


def draw_positions(count: int, word_count: int, rng: np.random.Generator) -> list[int]:
    """Draw `count` different positions below `word_count`, all equally likely, in random order.

    These are the first steps of a Fisher-Yates shuffle, without a list of all positions.
    """
    exchanged: dict[int, int] = {}  # entries of the shuffled list that differ from their index
    chosen = []
    for step, uniform in enumerate(rng.random(min(count, word_count)).tolist()):
        position = step + int(uniform * (word_count - step))
        chosen.append(exchanged.get(position, position))
        exchanged[position] = exchanged.get(step, step)
    return chosen


@functools.lru_cache(maxsize=1 << 16)
def split_word(word: str) -> tuple[str, str, str]:
    """Split a word into (punctuation before it, the word, punctuation and a possessive 's after it).

    The middle part is empty if the word consists of punctuation.
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


def cased_like(word: str, replacement: str) -> str:
    """Return the replacement in capitals, or with a capital first letter, if `word` is written that way."""
    if len(word) > 1 and word.isupper():
        return replacement.upper()
    return replacement[:1].upper() + replacement[1:] if word[:1].isupper() else replacement


def _is_punctuation(character: str) -> bool:
    return unicodedata.category(character)[0] in "PSC"  # punctuation, symbol, control character
