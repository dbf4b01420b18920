"""Group texts into packed buffers of a fixed number of tokens, by their lengths."""

from collections.abc import Sequence

import numpy as np

from pipeline.errors import ConfigError


def longest_first(lengths: np.ndarray) -> np.ndarray:
    """Row numbers by decreasing length; rows of equal length stay in input order.

    With the longest rows first, an out-of-memory error shows at once (smart batching, Reimers & Gurevych
    2019).

    >>> longest_first(np.array([2, 5, 2])).tolist()
    [1, 0, 2]
    """
    return np.argsort(-np.asarray(lengths), kind="stable")


def plan_buffers(lengths: np.ndarray, max_tokens: int) -> list[np.ndarray]:
    """Group row numbers into buffers of at most `max_tokens` tokens.

    Each buffer takes the longest remaining row, then again the longest row that still fits, so only the last
    buffers have gaps. These are the buffers of first-fit decreasing: at most 11/9 of the fewest possible,
    plus one (Dosa 2007). Rows without tokens are in no buffer; every other row is in exactly one.

    Args:
        lengths: (n,) tokens of each row.
        max_tokens: size of a buffer.

    Returns:
        Row numbers of each buffer, by decreasing length.

    Raises:
        ConfigError: a row has more than `max_tokens` tokens.

    >>> [rows.tolist() for rows in plan_buffers(np.array([3, 7, 0, 5, 2]), max_tokens=8)]
    [[1], [3, 0], [4]]
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
    remaining = _RemainingRows(lengths[order])
    return [order[rows] for rows in iter(lambda: remaining.take(max_tokens), [])]


class _RemainingRows:
    """Rows that are in no buffer yet, as indices into lengths that are sorted in decreasing order.

    Rows of equal length are a range of indices; the lowest index of a range is taken first.
    """

    def __init__(self, lengths: np.ndarray) -> None:
        # Negated, because `unique` sorts in ascending order.
        negated, starts, counts = np.unique(-lengths, return_index=True, return_counts=True)
        self._lengths = -negated
        self._starts, self._ends = starts.copy(), starts + counts

    def take(self, max_tokens: int) -> list[int]:
        """Remove the rows of one buffer and return their indices; [] if no row remains."""
        taken: list[int] = []
        free = max_tokens
        for number in range(len(self._lengths)):
            start, end = int(self._starts[number]), int(self._ends[number])
            length = int(self._lengths[number])
            count = min(free // length, end - start)
            if count:
                taken += range(start, start + count)
                self._starts[number] += count
                free -= count * length
        remains = self._starts < self._ends
        self._lengths = self._lengths[remains]
        self._starts, self._ends = self._starts[remains], self._ends[remains]
        return taken


def deduplicate(texts: Sequence[str]) -> tuple[list[str], np.ndarray]:
    """Deduplicate texts.

    Returns:
        The distinct texts in order of first occurrence, and (n,) int64: the index of each text among them.

    >>> texts, inverse = deduplicate(["b", "a", "b"])
    >>> texts, inverse.tolist()
    (['b', 'a'], [0, 1, 0])
    """
    index: dict[str, int] = {}
    inverse = np.fromiter(
        (index.setdefault(text, len(index)) for text in texts), dtype=np.int64, count=len(texts)
    )
    return list(index), inverse
