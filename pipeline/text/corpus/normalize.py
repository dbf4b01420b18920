"""Normalize a text to the string that the tokenizer gets, and hash it to find equal texts."""

import hashlib
import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.store.arrays import is_text

NORMALIZER_VERSION = "strip-1"  # part of space_id: another rule makes another embedding space

_SURROGATES = re.compile("[\ud800-\udfff]")
# category Cc without tab, line feed and carriage return
_CONTROLS = r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x{80}-\x{9f}]"


def normalize(texts: pa.Array | Sequence[str | None]) -> pa.Array:
    r"""Strip white space from both ends, as `str.strip` does; nothing else is changed.

    Lone surrogates, which Python strings may contain (JSON's "\ud800") and Arrow arrays may not, become
    U+FFFD.

    Returns:
        A large_string array; null stays null.
    """
    if not isinstance(texts, pa.Array):
        texts = pa.array([text and replace_surrogates(text) for text in texts], pa.large_string())
    return pc.utf8_trim_whitespace(texts.cast(pa.large_string()))


def replace_surrogates(text: str) -> str:
    """Replace every lone surrogate by U+FFFD, so that the text can be encoded as UTF-8."""
    return _SURROGATES.sub("\ufffd", text)


def has_surrogates(text: str) -> bool:
    """Return whether the text has a lone surrogate. Python's JSON parser joins the two halves of a pair."""
    return _SURROGATES.search(text) is not None


def text_keys(texts: pa.Array) -> pa.Array:
    """blake2b-128 of each text's UTF-8: binary(16), null for null."""
    return blake2b_digests(texts, 16)


def blake2b_digests(strings: pa.Array, size: int) -> pa.Array:
    """blake2b of each string's bytes with a digest of `size` bytes: binary(size), null for null."""
    start, blake2b = hashlib.blake2b(digest_size=size), hashlib.blake2b
    encoded = strings.cast(pa.large_binary()).to_numpy(zero_copy_only=False)
    if strings.null_count:
        found = [None if one is None else blake2b(one, digest_size=size).digest() for one in encoded]
        return pa.array(found, pa.binary(size))
    content = bytearray()
    for one in encoded:
        state = start.copy()  # half the cost of a new state
        state.update(one)
        content += state.digest()
    buffers = [None, pa.py_buffer(bytes(content))]
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(size), len(encoded), buffers)


def count_control_characters(texts: pa.Array) -> int:
    """Number of texts with NUL or another control character except tab, line feed and carriage return."""
    return pc.sum(pc.match_substring_regex(texts, _CONTROLS)).as_py() or 0


def valid_utf8(strings: pa.Array) -> np.ndarray:
    """(n,) bool: which strings or binaries are valid UTF-8; null counts as valid.

    Parquet readers do not check that a file's strings are valid.
    """
    try:
        (strings if is_text(strings.type) else strings.cast(pa.large_string())).validate(full=True)
    except pa.ArrowInvalid:
        encoded = strings.cast(pa.large_binary()).to_numpy(zero_copy_only=False)
        return np.array([one is None or is_utf8(one) for one in encoded], dtype=bool)
    return np.ones(len(strings), dtype=bool)


def is_utf8(content: bytes) -> bool:
    """Return whether bytes are valid UTF-8."""
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True
