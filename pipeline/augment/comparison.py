"""Compare texts without regard to case and punctuation, and count their repetitions."""

import unicodedata

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_PUNCTUATION = r"\p{P}+"
_STOP = "."  # replaces punctuation between words
_BLANK = pa.scalar(" ", pa.large_string())


def comparable(texts: pa.Array) -> pa.Array:
    """Texts in the form in which they are compared.

    NFKC, case-folded, without punctuation, white space as one blank.
    """
    return without_punctuation(case_fold(texts))


def repetitions(texts: pa.Array, run: int) -> tuple[np.ndarray, np.ndarray]:
    """Count repeated words and repeated runs of `run` words.

    A word does not follow itself across punctuation. The texts must not be null.

    Returns:
        Two (n,) int64: how often a word follows itself, and how often the most frequent run occurs.
    """
    return folded_repetitions(case_fold(texts), run)


def as_mask(found: pa.Array) -> np.ndarray:
    """(n,) bool; null counts as false."""
    return np.array(found.fill_null(False).to_numpy(zero_copy_only=False), bool)


def text_lengths(texts: pa.Array) -> np.ndarray:
    """(n,) int64: characters without white space at both ends; 0 for null."""
    return np.asarray(
        pc.utf8_length(pc.utf8_trim_whitespace(texts)).fill_null(0).to_numpy(zero_copy_only=False)
    )


def case_fold(texts: pa.Array) -> pa.Array:
    """NFKC and case folding. Arrow only has lower case, which does not make the two spellings of a German
    double s equal.
    """
    return pa.array(
        [
            None if text is None else unicodedata.normalize("NFKC", text).casefold()
            for text in texts.to_pylist()
        ],
        pa.large_string(),
    )


def without_punctuation(folded: pa.Array) -> pa.Array:
    """Case-folded texts without punctuation, with white space as one blank."""
    return pc.binary_join(
        pc.utf8_split_whitespace(
            pc.utf8_trim_whitespace(pc.replace_substring_regex(folded, _PUNCTUATION, ""))
        ),
        _BLANK,
    )


def folded_repetitions(folded: pa.Array, run: int) -> tuple[np.ndarray, np.ndarray]:
    """`repetitions` of texts that are case-folded already."""
    parts = pc.utf8_split_whitespace(
        pc.utf8_trim_whitespace(pc.replace_substring_regex(folded, _PUNCTUATION, f" {_STOP} "))
    )
    coded = pc.list_flatten(parts).dictionary_encode()
    rows, codes = (
        pc.list_parent_indices(parts).to_numpy(),
        coded.indices.to_numpy(zero_copy_only=False).astype(np.int64),
    )
    spoken = codes != coded.dictionary.index(_STOP).as_py()
    follows = (codes[1:] == codes[:-1]) & (rows[1:] == rows[:-1]) & spoken[1:]
    return np.bincount(rows[1:][follows], minlength=len(folded)), _most_frequent_run(
        rows[spoken], codes[spoken], run, len(folded)
    )


def _most_frequent_run(rows: np.ndarray, codes: np.ndarray, run: int, texts: int) -> np.ndarray:
    """(texts,) int64: how often each text's most frequent run of words occurs; 0 if the text has fewer words.

    rows, codes: the text and the number of each word.
    """
    most, runs = np.zeros(texts, np.int64), codes
    for further in range(1, run):
        following = codes[further:]
        runs = np.unique(
            runs[: len(following)] * (codes.max(initial=0) + 1) + following, return_inverse=True
        )[1]
    begin = rows[: len(runs)]
    whole = begin == rows[len(rows) - len(runs) :]
    keys, times = np.unique(begin[whole] * (runs.max(initial=0) + 1) + runs[whole], return_counts=True)
    np.maximum.at(most, keys // (runs.max(initial=0) + 1), times)
    return most
