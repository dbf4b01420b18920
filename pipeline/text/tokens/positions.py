"""Masks of the tokens at given positions of texts that are concatenated, as in `Tokens`."""

import numpy as np


def surroundings(offsets: np.ndarray, before: int, after: int) -> np.ndarray:
    """(tokens,) bool: the first `before` and the last `after` tokens of each row.

    Args:
        offsets: (n + 1,) offsets of the rows, as in `Tokens`.
    """
    from_start, to_end = _distances(offsets)
    return (from_start < before) | (to_end <= after)


def tokens_at(offsets: np.ndarray, position: int) -> np.ndarray:
    """(tokens,) bool: the token at a position of each row, counted from the row's end if negative.

    Args:
        offsets: (n + 1,) offsets of the rows, as in `Tokens`.
    """
    from_start, to_end = _distances(offsets)
    return from_start == position if position >= 0 else to_end == -position


def _distances(offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return each token's distance from the first token of its row, and from the end (1 for the last)."""
    lengths = np.diff(offsets)
    from_start = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    return from_start, np.repeat(lengths, lengths) - from_start
