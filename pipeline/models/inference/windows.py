"""Windows: batches of texts that are tokenized and encoded together, and the vectors of each batch."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.text.normalize import check_sequence
from pipeline.text.tokens.budget import deduplicate
from pipeline.text.tokens.tokens import TokenCounts, Tokenizer, Tokens

# rows of the first window: few, so that the forward pass starts early; later windows grow, so that the
# tokenizer stays ahead
_FIRST_WINDOW = 2_048


@dataclass(frozen=True)
class EncodedBatch:
    """Vectors of n texts, in input order."""

    vectors: np.ndarray
    """(n, dim) float32"""
    bad: np.ndarray
    """(n,) bool: the vector is zero or not finite"""
    counts: TokenCounts

    def split(self, rows: Sequence[int]) -> "Iterator[EncodedBatch]":
        """Split into pieces of `rows` rows each."""
        parts = (np.split(part, np.cumsum(rows)[:-1]) for part in (self.vectors, self.bad, *self.counts))
        for vectors, bad, *counts in zip(*parts, strict=True):
            yield EncodedBatch(vectors, bad, TokenCounts(*counts))


@dataclass
class Counters:
    """Work done since the encoder was loaded."""

    texts: int = 0
    repeats: int = 0
    """texts that were not encoded because their window contains the same text already"""
    tokens: int = 0
    padding: int = 0
    """padding tokens that were computed"""
    waiting_s: float = 0.0
    """time spent waiting for tokenized texts"""
    forward_s: float = 0.0
    """time spent in forward passes"""


@dataclass(frozen=True)
class Window:
    """Distinct texts of consecutive batches, tokenized."""

    rows: list[int]
    """rows of each batch"""
    tokens: Tokens
    inverse: np.ndarray
    """for each row, the index of its text in `tokens`"""

    @classmethod
    def of(cls, batches: Sequence[list[str]], tokenizer: Tokenizer) -> "Window":
        """Tokenize each distinct text of some batches."""
        unique, inverse = deduplicate([text for batch in batches for text in batch])
        return cls([len(batch) for batch in batches], tokenizer(unique), inverse)


def windows(batches: Iterable[pa.Array | Sequence[str]], max_rows: int) -> Iterator[list[list[str]]]:
    """Group whole batches into windows, which double in size up to about `max_rows` rows."""
    window: list[list[str]] = []
    rows, target = 0, min(_FIRST_WINDOW, max_rows)
    for batch in batches:
        window.append(_to_list(batch))
        rows += len(window[-1])
        if rows >= target:
            yield window
            window, rows, target = [], 0, min(2 * target, max_rows)
    if window:
        yield window


def as_strings(texts: Iterable[Any]) -> list[str]:
    """Convert a sequence of strings to a list.

    Raises:
        TypeError: it is not a sequence, or a text is not a string; the message has position and type.
    """
    check_sequence(texts, "texts")
    rows = _to_list(texts)
    for number, text in enumerate(rows):
        if not isinstance(text, str):
            raise TypeError(
                f"texts[{number}]: expected a string, found {type(text).__name__}; "
                "replace missing texts by '' or leave them out"
            )
    return rows


def _to_list(texts: Iterable[Any]) -> list[Any]:
    return texts.to_pylist() if isinstance(texts, (pa.Array, pa.ChunkedArray)) else list(texts)
