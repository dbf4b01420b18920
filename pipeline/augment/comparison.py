"""Compare texts without regard to case and punctuation, and count their repetitions."""

import unicodedata

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_PUNCTUATION = r"\p{P}+"
_STOP = "."  # replaces punctuation between words
_BLANK = pa.scalar(" ", pa.large_string())


def as_mask(found: pa.Array) -> np.ndarray:
    """(n,) bool; null counts as false."""
    return np.array(found.fill_null(False).to_numpy(zero_copy_only=False), bool)


def text_lengths(texts: pa.Array) -> np.ndarray:
    """(n,) int64: characters without white space at both ends; 0 for null."""
    lengths = pc.utf8_length(pc.utf8_trim_whitespace(texts))
    return np.asarray(lengths.fill_null(0).to_numpy(zero_copy_only=False))


def case_fold(texts: pa.Array) -> pa.Array:
    """Normalize texts to NFKC and fold their case; null stays null.

    Arrow only has lower case, which does not make the two spellings of a German double s equal.
    """
    folded = (text and unicodedata.normalize("NFKC", text).casefold() for text in texts.to_pylist())
    return pa.array(folded, pa.large_string())


def without_punctuation(folded: pa.Array) -> pa.Array:
    """Remove the punctuation of case-folded texts, and write white space as one blank.

    Texts are compared in this form.
    """
    return pc.binary_join(_split(folded, ""), _BLANK)


def repetitions(folded: pa.Array, run: int) -> tuple[np.ndarray, np.ndarray]:
    """Count repeated words and repeated runs of `run` words in n case-folded texts, none of them null.

    A word does not follow itself across punctuation.

    Returns:
        Two (n,) int64: how often a word follows itself, and how often the most frequent run occurs.
    """
    parts = _split(folded, f" {_STOP} ")
    coded = pc.list_flatten(parts).dictionary_encode()
    rows = pc.list_parent_indices(parts).to_numpy()
    codes = coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    spoken = codes != coded.dictionary.index(_STOP).as_py()
    follows = (codes[1:] == codes[:-1]) & (rows[1:] == rows[:-1]) & spoken[1:]
    repeated = np.bincount(rows[1:][follows], minlength=len(folded))
    return repeated, _most_frequent_run(rows[spoken], codes[spoken], run, len(folded))


def _split(folded: pa.Array, punctuation: str) -> pa.Array:
    """Split texts at white space, with other text in place of punctuation."""
    replaced = pc.replace_substring_regex(folded, _PUNCTUATION, punctuation)
    return pc.utf8_split_whitespace(pc.utf8_trim_whitespace(replaced))


def _most_frequent_run(rows: np.ndarray, codes: np.ndarray, run: int, texts: int) -> np.ndarray:
    """(texts,) int64: how often each text's most frequent run of words occurs; 0 if the text has fewer words.

    rows, codes: the text and the number of each word.
    """
    most, runs = np.zeros(texts, np.int64), codes
    for further in range(1, run):
        following = codes[further:]
        pairs = runs[: len(following)] * (codes.max(initial=0) + 1) + following
        runs = np.unique(pairs, return_inverse=True)[1]
    begin, kinds = rows[: len(runs)], runs.max(initial=0) + 1
    whole = begin == rows[len(rows) - len(runs) :]
    keys, times = np.unique(begin[whole] * kinds + runs[whole], return_counts=True)
    np.maximum.at(most, keys // kinds, times)
    return most
