"""Group texts into packed buffers of a fixed number of tokens. All functions depend on lengths alone."""

from collections.abc import Sequence

import numpy as np

from pipeline.errors import ConfigError


def longest_first(lengths: np.ndarray) -> np.ndarray:
    """Row numbers by falling length; rows of equal length stay in input order.

    With the longest rows first, an out-of-memory error shows at once (smart batching, Reimers & Gurevych
    2019).
    """
    return np.argsort(-np.asarray(lengths), kind="stable")


def plan_buffers(lengths: np.ndarray, max_tokens: int) -> list[np.ndarray]:
    """Group row numbers into buffers of at most `max_tokens` tokens.

    Each buffer takes the longest remaining row, then again the longest row that still fits, so only the last
    buffers have gaps. Rows without tokens are in no buffer; every other row is in exactly one.

    Args:
        lengths: (n,) tokens of each row.
        max_tokens: size of a buffer.

    Returns:
        Row numbers of each buffer, by falling length.

    Raises:
        ConfigError: a row has more than `max_tokens` tokens.
    """
    lengths = np.asarray(lengths)
    if len(lengths) and lengths.max() > max_tokens:
        raise ConfigError(
            "encode.max_tokens",
            f"at least the {lengths.max()} tokens of the longest text",
            str(max_tokens),
            "raise it, or lower encoder.max_length",
        )
    order = longest_first(lengths)
    order = order[lengths[order] > 0]
    waiting = _LongestFirst(lengths[order])
    return [order[rows] for rows in iter(lambda: waiting.take(max_tokens), [])]


class _LongestFirst:
    """Indices of rows sorted by falling length, handed out longest first."""

    def __init__(self, lengths: np.ndarray) -> None:
        # negated, so that ascending order is longest first
        negated, starts, counts = np.unique(-lengths, return_index=True, return_counts=True)
        self._sizes = -negated
        self._next, self._ends = starts.copy(), starts + counts

    def take(self, room: int) -> list[int]:
        """Indices of the rows of one buffer; [] when all rows have been handed out."""
        taken: list[int] = []
        for kind in range(len(self._sizes)):
            size = int(self._sizes[kind])
            count = min(room // size, int(self._ends[kind] - self._next[kind]))
            if count:
                taken += range(int(self._next[kind]), int(self._next[kind]) + count)
                self._next[kind] += count
                room -= count * size
        left = self._next < self._ends
        self._sizes, self._next, self._ends = self._sizes[left], self._next[left], self._ends[left]
        return taken


def distinct(texts: Sequence[str]) -> tuple[list[str], np.ndarray]:
    """Deduplicate texts.

    Returns:
        The distinct texts in order of first occurrence, and (n,) int64 indices of the given texts among them.
    """
    index: dict[str, int] = {}
    inverse = np.fromiter(
        (index.setdefault(text, len(index)) for text in texts), dtype=np.int64, count=len(texts)
    )
    return list(index), inverse
