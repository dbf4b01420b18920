"""Edit distances, lexical overlap, rank correlations and neighbour distances.

They show how far similarities depend on the surface of texts: on spelling, length and word frequency.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Literal

import numpy as np

from pipeline.errors import DataError
from pipeline.stats.correlation import spearman
from pipeline.stats.geometry import Metric

EditUnit = Literal["characters", "words"]

_BLOCK = 512  # rows per block of distances


def edit_distance(left: Sequence[Hashable], right: Sequence[Hashable]) -> int:
    """Levenshtein distance: the number of insertions, deletions and substitutions between two sequences.

    Uses the bit-parallel algorithm of Myers (1999) in the form of Hyyrö (2003). A column of the dynamic
    programming table is held as two integers, whose bits mark the rows where the distance rises or falls by
    one, so that each symbol of `right` takes a dozen integer operations.

    >>> edit_distance("kitten", "sitting")
    3
    """
    if not left or not right:
        return len(left) + len(right)
    positions: dict[Hashable, int] = {}
    for position, symbol in enumerate(left):
        positions[symbol] = positions.get(symbol, 0) | 1 << position
    all_rows, last_row = (1 << len(left)) - 1, 1 << len(left) - 1
    rises, falls, distance = all_rows, 0, len(left)
    for symbol in right:
        equal = positions.get(symbol, 0)
        diagonal = ((equal & rises) + rises ^ rises) | equal | falls
        up, down = falls | ~(diagonal | rises) & all_rows, rises & diagonal
        distance += bool(up & last_row) - bool(down & last_row)
        up = up << 1 & all_rows | 1  # the first row counts the insertions
        rises, falls = down << 1 & all_rows | ~(diagonal | up) & all_rows, up & diagonal
    return distance


def edit_distances(left: Sequence[str], right: Sequence[str], unit: EditUnit = "characters") -> np.ndarray:
    """Return (n,) int64 Levenshtein distances of pairs of texts, in characters or in words."""
    symbols: Callable[[str], Sequence[Hashable]] = str if unit == "characters" else str.split
    distances = (edit_distance(symbols(a), symbols(b)) for a, b in zip(left, right, strict=True))
    return np.fromiter(distances, dtype=np.int64, count=len(left))


def lexical_overlap(left: Sequence[Hashable], right: Sequence[Hashable]) -> float:
    """F1 of two bags of words, in [0, 1] (Gao et al. 2021, SimCSE, section 4.1).

    It is twice the sum over words of the smaller of the two counts, divided by the number of words of both
    bags; 0 if both are empty.

    >>> round(lexical_overlap("a cat sat".split(), "a cat ran".split()), 4)
    0.6667
    """
    common = Counter(left) & Counter(right)
    return 2 * common.total() / max(1, len(left) + len(right))


def rank_correlation(x: np.ndarray, y: np.ndarray, of: str, seed: int | None = None) -> Metric | None:
    """Spearman correlation of x and y (n,), times 100; None if either is constant to about six digits.

    Args:
        x: first values.
        y: second values.
        of: unit of n, such as "pairs".
        seed: seed of the sample that x and y come from; None if they are not a sample.
    """
    if len(x) < 2 or _is_constant(x) or _is_constant(y):
        return None
    return Metric(value=100 * spearman(x, y), count=len(x), of=of, seed=seed)


def neighbour_distances(x: np.ndarray, k: int) -> np.ndarray:
    """Return (n,) mean Euclidean distances of each row of x (n, d) to its k nearest other rows.

    Raises:
        DataError: unless n > k.
    """
    return np.asarray(nearest_distances(x, k).mean(axis=1))


def nearest_distances(x: np.ndarray, k: int) -> np.ndarray:
    """Return (n, k) Euclidean distances of each row of x (n, d) to its k nearest other rows, ascending.

    Raises:
        DataError: unless n > k.
    """
    if len(x) <= k:
        raise DataError(
            "distances to the nearest words",
            f"more than {k} words",
            str(len(x)),
            "give more text, or lower evaluate.geometry.neighbours",
        )
    x = np.asarray(x, dtype=np.float64)
    squares = np.einsum("nd,nd->n", x, x)
    blocks = []
    for start in range(0, len(x), _BLOCK):
        block = x[start : start + _BLOCK]
        squared = squares[start : start + _BLOCK, None] + squares - 2 * block @ x.T
        np.fill_diagonal(squared[:, start:], np.inf)
        nearest = np.sort(np.partition(squared, k - 1, axis=1)[:, :k], axis=1)
        blocks.append(np.sqrt(np.maximum(nearest, 0)))
    return np.concatenate(blocks)


def _is_constant(x: np.ndarray) -> bool:
    # Norms of normalized float32 vectors differ by rounding, in the eighth digit: their ranks mean nothing.
    return bool(np.ptp(x) <= 1e-6 * np.abs(x).max())
