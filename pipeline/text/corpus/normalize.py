"""The string that the tokenizer gets, and the key that says two of them are equal."""

import hashlib
import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

NORMALIZER_VERSION = "strip-1"  # belongs to space_id: another rule here is another space

_SURROGATES = re.compile("[\ud800-\udfff]")
_CONTROLS = (
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x{80}-\x{9f}]"  # category Cc without tab, line feed and carriage return
)


def normalize(texts: pa.Array | Sequence[str | None]) -> pa.Array:
    """The texts without white space at either end, lone surrogates as U+FFFD, nothing else changed; large_string, null stays null.

    White space is what `str.strip` takes for it. Python strings may hold lone surrogates (JSON's "\\ud800"); an Arrow array holds valid UTF-8.
    """
    array = (
        texts
        if isinstance(texts, pa.Array)
        else pa.array(
            [None if text is None else replace_surrogates(text) for text in texts], pa.large_string()
        )
    )
    return pc.utf8_trim_whitespace(array.cast(pa.large_string()))


def replace_surrogates(text: str) -> str:
    """`text` with U+FFFD for every lone surrogate: what is left can be written as UTF-8."""
    return _SURROGATES.sub("\ufffd", text)


def has_surrogates(text: str) -> bool:
    """Whether `text` holds a lone surrogate (Python joins the two halves of a pair when it reads JSON)."""
    return _SURROGATES.search(text) is not None


def text_keys(texts: pa.Array) -> pa.Array:
    """blake2b-128 of each text's UTF-8: binary(16), null for null."""
    return digests(texts, 16)


def digests(strings: pa.Array, size: int) -> pa.Array:
    """blake2b of each string's bytes with a digest of `size` bytes: binary(size), null for null."""
    start, blake2b = hashlib.blake2b(digest_size=size), hashlib.blake2b
    encoded = strings.cast(pa.large_binary()).to_numpy(zero_copy_only=False)
    if strings.null_count:
        return pa.array(
            [None if one is None else blake2b(one, digest_size=size).digest() for one in encoded],
            pa.binary(size),
        )
    found = []
    for one in encoded:
        state = start.copy()  # half the cost of a new state
        state.update(one)
        found.append(state.digest())
    return pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(size), len(found), [None, pa.py_buffer(b"".join(found))]
    )


def control_characters(texts: pa.Array) -> int:
    """How many texts hold NUL or another control character than tab, line feed and carriage return. They are encoded as they are."""
    return pc.sum(pc.match_substring_regex(texts, _CONTROLS)).as_py() or 0


def valid_utf8(strings: pa.Array) -> np.ndarray:
    """(n,) bool: which strings (or binaries) are valid UTF-8; null counts as valid. Parquet readers do not check what a file calls a string."""
    try:
        (strings if _is_text(strings.type) else strings.cast(pa.large_string())).validate(full=True)
    except pa.ArrowInvalid:
        return np.array(
            [
                one is None or _decodes(one)
                for one in strings.cast(pa.large_binary()).to_numpy(zero_copy_only=False)
            ],
            dtype=bool,
        )
    return np.ones(len(strings), dtype=bool)


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _decodes(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True
