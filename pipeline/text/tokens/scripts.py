"""Guess the script of a text from its letters.

The script shows how well a tokenizer fits a text, because most vocabularies cover a script or lack it.
Chinese, Japanese and Korean count as scripts; languages that share a script, such as English and Vietnamese,
are not distinguished.
"""

import functools

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_LEADING_CHARACTERS = 64  # number of characters of a text from which its script is guessed
_MIN_KANA = 0.1  # a text is Japanese if more than this proportion of kana and Chinese characters are kana
# Script -> (first, last) code points of its letters and marks, by the blocks of Unicode.
_BLOCKS: dict[str, tuple[tuple[int, int], ...]] = {
    "symbols": (),
    "latin": (
        (0x41, 0x5A),
        (0x61, 0x7A),
        (0xAA, 0xAA),
        (0xBA, 0xBA),
        (0xC0, 0xD6),
        (0xD8, 0xF6),
        (0xF8, 0x2AF),
        (0x1E00, 0x1EFF),
        (0x2C60, 0x2C7F),
        (0xA720, 0xA7FF),
        (0xFB00, 0xFB06),
        (0xFF21, 0xFF3A),
        (0xFF41, 0xFF5A),
    ),
    "greek": ((0x370, 0x3FF), (0x1F00, 0x1FFF)),
    "cyrillic": ((0x400, 0x52F), (0x1C80, 0x1C8F), (0x2DE0, 0x2DFF), (0xA640, 0xA69F)),
    "armenian": ((0x531, 0x58F), (0xFB13, 0xFB17)),
    "hebrew": ((0x591, 0x5FF), (0xFB1D, 0xFB4F)),
    "arabic": ((0x600, 0x6FF), (0x750, 0x77F), (0x870, 0x8FF), (0xFB50, 0xFDFF), (0xFE70, 0xFEFE)),
    "devanagari": ((0x900, 0x97F), (0xA8E0, 0xA8FF)),
    "bengali": ((0x980, 0x9FF),),
    "gurmukhi": ((0xA00, 0xA7F),),
    "gujarati": ((0xA80, 0xAFF),),
    "odia": ((0xB00, 0xB7F),),
    "tamil": ((0xB80, 0xBFF),),
    "telugu": ((0xC00, 0xC7F),),
    "kannada": ((0xC80, 0xCFF),),
    "malayalam": ((0xD00, 0xD7F),),
    "sinhala": ((0xD80, 0xDFF),),
    "thai": ((0xE00, 0xE7F),),
    "lao": ((0xE80, 0xEFF),),
    "tibetan": ((0xF00, 0xFFF),),
    "myanmar": ((0x1000, 0x109F), (0xA9E0, 0xA9FF), (0xAA60, 0xAA7F)),
    "georgian": ((0x10A0, 0x10FF), (0x1C90, 0x1CBF), (0x2D00, 0x2D2F)),
    "korean": ((0x1100, 0x11FF), (0x3131, 0x318F), (0xA960, 0xA97F), (0xAC00, 0xD7FF), (0xFFA0, 0xFFDC)),
    "ethiopic": ((0x1200, 0x139F), (0x2D80, 0x2DDF), (0xAB00, 0xAB2F)),
    "khmer": ((0x1780, 0x17FF),),
    "mongolian": ((0x1800, 0x18AF),),
    "japanese": ((0x3041, 0x30FA), (0x30FC, 0x30FF), (0x31F0, 0x31FF), (0xFF66, 0xFF9F)),
    "chinese": (
        (0x2E80, 0x2FDF),
        (0x3005, 0x3007),
        (0x3105, 0x312F),
        (0x3400, 0x4DBF),
        (0x4E00, 0x9FFF),
        (0xF900, 0xFAFF),
        (0x20000, 0x323AF),
    ),
    "other": (
        (0x700, 0x74F),
        (0x780, 0x86F),
        (0x13A0, 0x177F),
        (0x18B0, 0x1C7F),
        (0x2C00, 0x2C5F),
        (0x2C80, 0x2CFF),
        (0x2D30, 0x2D7F),
        (0xA000, 0xA63F),
        (0xA6A0, 0xA71F),
        (0xA800, 0xA8DF),
        (0xA900, 0xA95F),
        (0xA980, 0xA9DF),
        (0xAA00, 0xAA5F),
        (0xAA80, 0xAAFF),
        (0xAB30, 0xABFF),
        (0x10000, 0x1CFFF),
        (0x1E000, 0x1EEFF),
    ),
}
SCRIPTS = tuple(_BLOCKS)
"""names of the guesses; "symbols" means a text without letters"""
_LATIN, _JAPANESE, _CHINESE = (SCRIPTS.index(name) for name in ("latin", "japanese", "chinese"))


def scripts_of(texts: pa.Array) -> np.ndarray:
    """(n,) int64: index in SCRIPTS of the most frequent script among the first letters of each text."""
    beginnings = pc.utf8_slice_codeunits(texts, 0, _LEADING_CHARACTERS)
    # A text in ASCII is Latin if it has a letter; only other texts need counts.
    has_latin = pc.match_substring_regex(beginnings, "[A-Za-z]").to_numpy(zero_copy_only=False)
    scripts = has_latin.astype(np.int64) * _LATIN
    not_ascii = np.flatnonzero(~pc.string_is_ascii(beginnings).to_numpy(zero_copy_only=False))
    if len(not_ascii):
        scripts[not_ascii] = _most_frequent_scripts(beginnings.take(pa.array(not_ascii)).to_pylist())
    return scripts


def _most_frequent_scripts(texts: list[str]) -> np.ndarray:
    """(n,) int64: index in SCRIPTS of the most frequent script of each text, by counting code points."""
    code_points = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), np.uint32)
    rows = np.repeat(np.arange(len(texts)), list(map(len, texts)))
    cells = rows * len(SCRIPTS) + _script_of_code_point()[code_points]
    counts = np.bincount(cells, minlength=len(texts) * len(SCRIPTS)).reshape(len(texts), len(SCRIPTS))
    counts[:, 0] = 0  # symbols occur in texts of every script
    kana = counts[:, _JAPANESE]
    kana_and_chinese = kana + counts[:, _CHINESE]
    counts[:, _JAPANESE] = np.where(kana > _MIN_KANA * kana_and_chinese, kana_and_chinese, kana)
    return np.asarray(counts.argmax(axis=1))


@functools.cache
def _script_of_code_point() -> np.ndarray:
    """(code points,) uint8: index in SCRIPTS."""
    table = np.zeros(0x110000, np.uint8)
    for script, blocks in enumerate(_BLOCKS.values()):
        for first, last in blocks:
            table[first : last + 1] = script
    return table
