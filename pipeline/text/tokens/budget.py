"""Which texts share a forward pass: packed buffers of a fixed number of tokens. Pure functions of lengths."""

from collections.abc import Sequence

import numpy as np

from pipeline.errors import ConfigError


def longest_first(lengths: np.ndarray) -> np.ndarray:
    """Row numbers by falling length, equal lengths in input order: an out-of-memory error shows at once (smart batching, Reimers & Gurevych 2019)."""
    return np.argsort(-np.asarray(lengths), kind="stable")


def plan_buffers(lengths: np.ndarray, max_tokens: int) -> list[np.ndarray]:
    """Row numbers, each row that has tokens once, in buffers of at most `max_tokens` tokens; within a buffer by falling length.

    lengths (n,), each at most max_tokens (else ConfigError). Each buffer takes the longest row that is left and again the longest that still
    fits, so only the last buffers have gaps.
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
    waiting = _Waiting(lengths[order])
    return [order[places] for places in iter(lambda: waiting.take(max_tokens), [])]


class _Waiting:
    """Places of rows sorted by falling length, handed out longest first."""

    def __init__(self, lengths: np.ndarray) -> None:
        self._sizes, starts, counts = np.unique(
            -lengths, return_index=True, return_counts=True
        )  # negated: ascending is longest first
        self._sizes = -self._sizes
        self._next, self._ends = starts.copy(), starts + counts

    def take(self, room: int) -> list[int]:
        """Places of one buffer; [] when none waits."""
        places: list[int] = []
        for kind in range(len(self._sizes)):
            size = int(self._sizes[kind])
            count = min(room // size, int(self._ends[kind] - self._next[kind]))
            if count:
                places += range(int(self._next[kind]), int(self._next[kind]) + count)
                self._next[kind] += count
                room -= count * size
        self._forget_empty()
        return places

    def _forget_empty(self) -> None:
        left = self._next < self._ends
        self._sizes, self._next, self._ends = self._sizes[left], self._next[left], self._ends[left]


def distinct(texts: Sequence[str]) -> tuple[list[str], np.ndarray]:
    """(texts without repeats in order of first sight, (n,) int64 place of each text among them)."""
    places: dict[str, int] = {}
    inverse = np.fromiter(
        (places.setdefault(text, len(places)) for text in texts), dtype=np.int64, count=len(texts)
    )
    return list(places), inverse
