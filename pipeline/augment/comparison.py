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

    Arrow only has lower case, which leaves ß and ss different.
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
    is_word = codes != coded.dictionary.index(_STOP).as_py()
    follows = (codes[1:] == codes[:-1]) & (rows[1:] == rows[:-1]) & is_word[1:]
    repeated = np.bincount(rows[1:][follows], minlength=len(folded))
    return repeated, _most_frequent_run(rows[is_word], codes[is_word], run, len(folded))


def _split(folded: pa.Array, punctuation: str) -> pa.Array:
    """Replace punctuation by the string `punctuation`, and split the texts at white space."""
    replaced = pc.replace_substring_regex(folded, _PUNCTUATION, punctuation)
    return pc.utf8_split_whitespace(pc.utf8_trim_whitespace(replaced))


def _most_frequent_run(rows: np.ndarray, codes: np.ndarray, run: int, texts: int) -> np.ndarray:
    """(texts,) int64: how often each text's most frequent run of words occurs; 0 if the text has fewer words.

    Args:
        rows: (words,) index of the text of each word, ascending.
        codes: (words,) number of each word in the vocabulary.
        run: words of a run.
        texts: number of texts.
    """
    # Number the runs that begin at each word: equal runs get equal numbers. Each turn appends one word.
    runs = codes
    for offset in range(1, run):
        following = codes[offset:]
        pairs = runs[: len(following)] * (codes.max(initial=0) + 1) + following
        runs = np.unique(pairs, return_inverse=True)[1]
    first_rows, last_rows = rows[: len(runs)], rows[len(rows) - len(runs) :]
    inside = first_rows == last_rows  # the run does not extend into the next text
    distinct = runs.max(initial=0) + 1
    keys, counts = np.unique(first_rows[inside] * distinct + runs[inside], return_counts=True)
    most = np.zeros(texts, np.int64)
    np.maximum.at(most, keys // distinct, counts)
    return most
