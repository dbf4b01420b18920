"""Normalize case and punctuation of texts so that they can be compared, and count repeated words."""

import unicodedata

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_PUNCTUATION = r"\p{P}+"
_PUNCTUATION_TOKEN = "."  # replaces the punctuation between two words
_BLANK = pa.scalar(" ", pa.large_string())


def as_mask(booleans: pa.Array) -> np.ndarray:
    """Convert an Arrow array of booleans to (n,) bool; null becomes False."""
    return np.array(booleans.fill_null(False).to_numpy(zero_copy_only=False), bool)


def text_lengths(texts: pa.Array) -> np.ndarray:
    """Count the characters of texts without white space at both ends: (n,) int64, 0 for null."""
    lengths = pc.utf8_length(pc.utf8_trim_whitespace(texts))
    return np.asarray(lengths.fill_null(0).to_numpy(zero_copy_only=False))


def case_fold(texts: pa.Array) -> pa.Array:
    """Normalize texts to NFKC and fold their case; null stays null.

    Arrow has no case folding, only lower case, which would leave ß and ss different.
    """
    folded = (text and unicodedata.normalize("NFKC", text).casefold() for text in texts.to_pylist())
    return pa.array(folded, pa.large_string())


def without_punctuation(folded: pa.Array) -> pa.Array:
    """Remove the punctuation of case-folded texts, and replace white space by single blanks."""
    return pc.binary_join(_split(folded, ""), _BLANK)


def repetitions(folded: pa.Array, run_words: int) -> tuple[np.ndarray, np.ndarray]:
    """Count repeated words and repeated runs of words in n case-folded texts, none of them null.

    Args:
        folded: the texts.
        run_words: number of words of a run.

    Returns:
        Two (n,) int64: how often a word follows itself without punctuation between the two, and how often the
        most frequent run occurs.
    """
    tokens = _split(folded, f" {_PUNCTUATION_TOKEN} ")
    encoded = pc.list_flatten(tokens).dictionary_encode()
    rows = pc.list_parent_indices(tokens).to_numpy()
    codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    is_word = codes != encoded.dictionary.index(_PUNCTUATION_TOKEN).as_py()
    follows_itself = (codes[1:] == codes[:-1]) & (rows[1:] == rows[:-1]) & is_word[1:]
    repeated_words = np.bincount(rows[1:][follows_itself], minlength=len(folded))
    return repeated_words, _most_frequent_run(rows[is_word], codes[is_word], run_words, len(folded))


def _split(folded: pa.Array, replacement: str) -> pa.Array:
    """Replace punctuation by `replacement`, and split the texts at white space."""
    replaced = pc.replace_substring_regex(folded, _PUNCTUATION, replacement)
    return pc.utf8_split_whitespace(pc.utf8_trim_whitespace(replaced))


def _most_frequent_run(rows: np.ndarray, codes: np.ndarray, run_words: int, text_count: int) -> np.ndarray:
    """Count the occurrences of each text's most frequent run of words.

    Args:
        rows: (words,) index of the text of each word, ascending.
        codes: (words,) number of each word in the vocabulary.
        run_words: number of words of a run.
        text_count: number of texts.

    Returns:
        (text_count,) int64; 0 for a text with fewer words than a run.
    """
    # Number the run that begins at each word, so that equal runs have equal numbers. Each iteration appends
    # one word to all runs.
    runs = codes
    for offset in range(1, run_words):
        following = codes[offset:]
        pairs = runs[: len(following)] * (codes.max(initial=0) + 1) + following
        runs = np.unique(pairs, return_inverse=True)[1]
    first_rows, last_rows = rows[: len(runs)], rows[len(rows) - len(runs) :]
    inside = first_rows == last_rows  # the run does not extend into the next text
    run_count = runs.max(initial=0) + 1
    keys, counts = np.unique(first_rows[inside] * run_count + runs[inside], return_counts=True)
    highest = np.zeros(text_count, np.int64)
    np.maximum.at(highest, keys // run_count, counts)
    return highest
