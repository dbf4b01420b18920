"""Byte strings and vectors to search for in any content, in every coding in which a file may hold them."""

import base64
import hashlib
import html
import json
import re
import urllib.parse
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

SHORTEST = 8
"""bytes of the shortest pattern: a shorter one occurs by chance"""
WINDOW = 20
"""characters of a text that are searched for together; any excerpt of WINDOW + STEP characters holds one"""
STEP = 8
_TOLERANCE = 2e-3  # relative to the largest component; a component in float16 is off by 5e-4 at most
_TYPES = ("<f4", "<f2", "<f8")


def codings_of_text(text: str) -> Iterator[bytes]:
    """Yield the bytes of a text as they are in files of many formats."""
    data = text.encode()
    yield data
    yield text.encode("utf-16-le")
    yield json.dumps(text)[1:-1].encode()
    yield html.escape(text).encode()
    yield urllib.parse.quote(text).encode()
    yield from codings_of_bytes(data)


def codings_of_bytes(data: bytes) -> Iterator[bytes]:
    """Yield bytes as they are, in hexadecimal digits, and in base64 at any position in a longer content."""
    yield data
    yield data.hex().encode()
    for before in range(3):
        code = base64.b64encode(bytes(before) + data).rstrip(b"=")
        # the first and the last characters also code bytes around `data`
        yield code[(8 * before + 5) // 6 : len(code) - (2 if (before + len(data)) % 3 else 0)]


def digests_of_text(text: str) -> Iterator[bytes]:
    """Yield the hashes by which tables of keys know a text or an id, and the common ones of 32 bytes."""
    data = text.encode()
    short = hashlib.blake2b(data, digest_size=8).digest()
    yield from (short, short[::-1], hashlib.blake2b(data, digest_size=16).digest())
    yield from (hashlib.blake2b(data, digest_size=32).digest(), hashlib.sha256(data).digest())


def windows(text: str) -> Iterator[str]:
    """Yield pieces of a text, one of which is in every longer excerpt; the whole text if it is short."""
    if len(text) <= WINDOW:
        yield text
    for start in range(0, len(text) - WINDOW + 1, STEP):
        yield text[start : start + WINDOW]
    if len(text) > WINDOW:
        yield text[-WINDOW:]


def long_words(text: str) -> Iterator[str]:
    """Yield the words of a text that are long enough to be searched for by themselves."""
    return (word for word in re.findall(r"\w+", text) if len(word.encode()) >= SHORTEST)


class BytePatterns:
    """Many byte strings, which are searched for together."""

    def __init__(self, patterns: Iterable[tuple[bytes, str]]) -> None:
        """Begin with pairs of a pattern and the name of what it is, without those below SHORTEST bytes."""
        self.names = {pattern: name for pattern, name in patterns if len(pattern) >= SHORTEST}
        self._by_head: dict[int, list[bytes]] = {}
        for pattern in self.names:
            self._by_head.setdefault(int.from_bytes(pattern[:8], "little"), []).append(pattern)
        self._heads = np.array(sorted(self._by_head), np.uint64)

    def find(self, data: bytes) -> set[bytes]:
        """Return the patterns that are in `data`, at any position."""
        found = set[bytes]()
        for shift in range(min(8, len(data) - 7) if len(self._heads) else 0):
            words = np.frombuffer(data, "<u8", (len(data) - shift) // 8, shift)
            slots = np.minimum(np.searchsorted(self._heads, words), len(self._heads) - 1)
            for index in np.flatnonzero(self._heads[slots] == words).tolist():
                start = shift + 8 * index
                candidates = self._by_head[int(words[index])]
                found.update(each for each in candidates if data.startswith(each, start))
        return found

    def without(self, patterns: Iterable[bytes]) -> "BytePatterns":
        """Return all patterns but some."""
        left_out = set(patterns)
        return BytePatterns(
            (pattern, name) for pattern, name in self.names.items() if pattern not in left_out
        )


def find_vectors(data: bytes, vectors: np.ndarray, *, aligned: bool = False) -> np.ndarray:
    """Return the numbers of the vectors whose components are in `data`, one after the other.

    They are found in float32, float16 and float64, as they are and scaled to length 1.

    Args:
        vectors: (n, d), none of them zero.
        aligned: whether numbers begin at multiples of their size only.
    """
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    both = np.concatenate([vectors, vectors / lengths]).astype(np.float64)
    found = set[int]()
    for kind in map(np.dtype, _TYPES):
        for shift in range(1 if aligned else kind.itemsize):
            count = (len(data) - shift) // kind.itemsize if len(data) > shift else 0
            if count >= both.shape[1]:
                with np.errstate(invalid="ignore"):  # any bytes are read as numbers
                    values = np.frombuffer(data, kind, count, shift).astype(np.float64)
                found |= _find_in(values, both)
    return np.array(sorted({number % len(vectors) for number in found}), dtype=int)


def _find_in(values: np.ndarray, vectors: np.ndarray) -> set[int]:
    """Return the numbers of the vectors that are somewhere in `values`, up to _TOLERANCE."""
    values[~(np.abs(values) < 1e6)] = 0.0  # also NaN; no vector has such components
    order, dim = np.argsort(values), vectors.shape[1]
    ascending, found = values[order], set[int]()
    for number, vector in enumerate(vectors):
        largest = int(np.argmax(np.abs(vector)))
        near = _TOLERANCE * abs(vector[largest])
        bounds = np.searchsorted(ascending, [vector[largest] - near, vector[largest] + near])
        starts = order[bounds[0] : bounds[1]] - largest
        starts = starts[(starts >= 0) & (starts <= len(values) - dim)]
        for offset in range(dim):
            if len(starts):
                starts = starts[np.abs(values[starts + offset] - vector[offset]) <= near]
        if len(starts):
            found.add(number)
    return found


def as_numbers(value: Sequence[object]) -> bytes:
    """Return a list of numbers as float64, so that vectors are found in it; b"" if it is none."""
    if value and all(isinstance(each, int | float) for each in value):
        return np.array(value, np.float64).tobytes()
    return b""
