"""What methods that edit words share: how many of them, which places, which words carry no content, how one word takes the place of another,
and where a file is."""

import functools
import re
import unicodedata
from pathlib import Path

import numpy as np

_ENGLISH = """
    a about above after again against ain't all am an and any are aren't as at be because been before being below between both but by can can't cannot could couldn't
    did didn't do does doesn't doing don't down during each either else ever few for from further had hadn't has hasn't have haven't having he he'd he'll her here hers
    herself him himself his how i i'd i'll i'm i've if in into is isn't it it'd it'll its itself just let may me might mightn't more most must mustn't my myself needn't
    neither no nor not now of off on once only onto or other others ought our ours ourselves out over own per same shall shan't she she'd she'll should shouldn't so some
    such than that the their theirs them themselves then there these they they'd they'll they're they've this those though through thus to too under until up upon us
    very via was wasn't we we'd we'll we're we've were weren't what when where whether which while who whom whose why will with within without won't would wouldn't yet
    you you'd you'll you're you've your yours yourself yourselves
"""
STOP_WORDS = frozenset(_ENGLISH.split())
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
