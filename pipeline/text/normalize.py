"""Normalize a text to the string that the tokenizer gets, and hash it to find equal texts."""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import DataError
from pipeline.store.rows.arrays import is_text, one_chunk

# Part of space_id: vectors of texts normalized by another rule are in another space.
NORMALIZER_VERSION = "strip-1"

_SENTENCE_ENDS = (".", "?", '"', "'")
_SURROGATES = re.compile("[\ud800-\udfff]")
# Unicode category Cc without tab, line feed and carriage return, in the syntax of RE2, which Arrow uses
_CONTROLS = r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x{80}-\x{9f}]"


def normalize(texts: pa.Array | Sequence[str | None]) -> pa.Array:
    r"""Strip white space from both ends, as `str.strip` does.

    In Python strings, lone surrogates (from "\ud800" in JSON) become U+FFFD, because Arrow arrays cannot
    contain them. Nothing else is changed.

    Returns:
        A large_string array; null stays null.
    """
    if not isinstance(texts, pa.Array):
        texts = pa.array([text and replace_surrogates(text) for text in texts], pa.large_string())
    return pc.utf8_trim_whitespace(texts.cast(pa.large_string()))


def check_sequence(texts: Any, name: str, also: str = "") -> None:
    """Check that an argument is a sequence of elements that may be strings.

    Tables and mappings are refused, because they would be read as their columns' names and their keys.

    Args:
        texts: the argument.
        name: name of the argument.
        also: other permitted values, as the end of a phrase for the message.

    Raises:
        TypeError: it is not such a sequence; the message names its type.
    """
    is_table = any(hasattr(texts, attribute) for attribute in ("columns", "column_names"))
    no_sequence = isinstance(texts, (bytes, bytearray, Mapping, set, frozenset)) or not isinstance(
        texts, Iterable
    )
    # a NumPy array without dimensions is a single value
    if is_table or no_sequence or getattr(texts, "ndim", 1) == 0:
        expected = f"a string or a sequence of strings{also}"
        remedy = "; give one of its columns" if is_table or isinstance(texts, Mapping) else ""
        raise TypeError(f"{name}: expected {expected}, found {type(texts).__name__}{remedy}")


def replace_surrogates(text: str) -> str:
    """Replace every lone surrogate by U+FFFD, so that the text can be encoded as UTF-8."""
    return _SURROGATES.sub("\ufffd", text)


def has_surrogates(text: str) -> bool:
    """Return whether the text has a lone surrogate (Python's JSON parser has already joined pairs)."""
    return _SURROGATES.search(text) is not None


def text_keys(texts: pa.Array) -> pa.Array:
    """Return the blake2b-128 of each text in UTF-8: binary(16), null for null."""
    return blake2b_digests(texts, 16)


def end_sentence(text: str) -> str:
    """Add a full stop as the evaluation of PromptBERT does (Jiang et al. 2022); an empty text stays empty."""
    return text if not text.strip() or text.rstrip().endswith(_SENTENCE_ENDS) else f"{text.rstrip()}."


def key_numbers(texts: Sequence[str]) -> np.ndarray:
    """Return the text_key of each text after `normalize`, as the corpus has it: (n, 2) uint64."""
    content = b"".join(text_keys(normalize(texts)).to_pylist())
    return np.frombuffer(content, "<u8").reshape(-1, 2)


def blake2b_digests(strings: pa.Array, size: int, key: bytes = b"") -> pa.Array:
    """Return the blake2b digest, of `size` bytes, of each string's bytes: binary(size), null for null.

    Args:
        key: at most 64 bytes; digests under different keys are independent.
    """
    encoded = strings.cast(pa.large_binary()).to_numpy(zero_copy_only=False)
    if strings.null_count:
        digests = [
            None if value is None else hashlib.blake2b(value, digest_size=size, key=key).digest()
            for value in encoded
        ]
        return pa.array(digests, pa.binary(size))
    content, initial = bytearray(), hashlib.blake2b(digest_size=size, key=key)
    for value in encoded:
        state = initial.copy()  # a copy takes half the time of a new state
        state.update(value)
        content += state.digest()
    buffers = [None, pa.py_buffer(bytes(content))]
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(size), len(encoded), buffers)


def count_control_characters(texts: pa.Array) -> int:
    """Count the texts with NUL or another control character except tab, line feed and carriage return."""
    return pc.sum(pc.match_substring_regex(texts, _CONTROLS)).as_py() or 0


def valid_utf8(strings: pa.Array) -> np.ndarray:
    """Return (n,) bool: True for strings or binaries that are valid UTF-8, and for null.

    Parquet readers do not check that a file's strings are valid.
    """
    try:
        (strings if is_text(strings.type) else strings.cast(pa.large_string())).validate(full=True)
    except pa.ArrowInvalid:
        encoded = strings.cast(pa.large_binary()).to_numpy(zero_copy_only=False)
        return np.array([value is None or is_utf8(value) for value in encoded], dtype=bool)
    return np.ones(len(strings), dtype=bool)


def strings_of(column: pa.ChunkedArray | pa.Array, where: str, first: int = 0) -> list[str | None]:
    """Return a column of strings as Python strings.

    Args:
        column: strings in any encoding.
        where: file and column, for the message.
        first: number of rows of the file before those of the column.

    Raises:
        DataError: a string is not valid UTF-8. The error names the row, counted from 1.
    """
    strings = one_chunk(column.cast(pa.large_string()))
    is_valid = valid_utf8(strings)
    if not is_valid.all():
        row = int(np.argmin(is_valid))
        found = ascii(strings[row].as_buffer().to_pybytes()[:40])
        raise DataError(f"{where}, row {first + row + 1}", "UTF-8", found, "convert the file to UTF-8")
    return list(strings.to_pylist())


def is_utf8(content: bytes) -> bool:
    """Return whether bytes are valid UTF-8."""
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True
