"""How far similarities hang on the surface of texts: edit distance, length, frequency of words."""

from collections.abc import Hashable, Sequence
from typing import Literal

import numpy as np

from pipeline.errors import DataError
from pipeline.stats.correlation import spearman
from pipeline.stats.geometry import Figure

EditUnit = Literal["characters", "words"]

_BLOCK = 512  # rows whose distances to all others are held at once


def edit_distance(left: Sequence[Hashable], right: Sequence[Hashable]) -> int:
    """Levenshtein distance: insertions, deletions and substitutions that turn one sequence into the other.

    A column of the table is one whole number whose bits say where it rises or falls by one (Myers 1999 in the form of Hyyrö 2003), so a step costs a
    dozen operations whatever the length: less than 0.1 ms for two sentences.
    """
    if not left or not right:
        return len(left) + len(right)
    places: dict[Hashable, int] = {}
    for place, symbol in enumerate(left):
        places[symbol] = places.get(symbol, 0) | 1 << place
    everything, last = (1 << len(left)) - 1, 1 << len(left) - 1
    rises, falls, distance = everything, 0, len(left)
    for symbol in right:
        equal = places.get(symbol, 0)
        diagonal = ((equal & rises) + rises ^ rises) | equal | falls
        up, down = falls | ~(diagonal | rises) & everything, rises & diagonal
        distance += bool(up & last) - bool(down & last)
        up = up << 1 & everything | 1  # the first row counts the insertions
        rises, falls = down << 1 & everything | ~(diagonal | up) & everything, up & diagonal
    return distance


def edit_distances(left: Sequence[str], right: Sequence[str], unit: EditUnit = "characters") -> np.ndarray:
    """(n,) int64 Levenshtein distance of each pair of texts, over characters or over words (white space separates them)."""
    pairs = zip(left, right, strict=True)
    made = (
        edit_distance(a, b) if unit == "characters" else edit_distance(a.split(), b.split()) for a, b in pairs
    )
    return np.fromiter(made, dtype=np.int64, count=len(left))


def rank_correlation(x: np.ndarray, y: np.ndarray, of: str, seed: int | None = None) -> Figure | None:
    """Spearman x100 of x and y (n,), ties by average ranks; None where one of them is constant (to seven digits), since nothing can go with it then."""
    if len(x) < 2 or _is_constant(x) or _is_constant(y):
        return None
    return Figure(value=100 * spearman(x, y), count=len(x), of=of, seed=seed)


def neighbour_distances(x: np.ndarray, k: int) -> np.ndarray:
    """(n,) mean Euclidean distance of each row of x (n, d) to its k nearest others. DataError unless n > k."""
    if len(x) <= k:
        raise DataError(
            "distances to the nearest words",
            f"more than {k} words",
            str(len(x)),
            "give more text, or lower evaluate.geometry.neighbours",
        )
    x = np.asarray(x, dtype=np.float64)
    squares = np.einsum("nd,nd->n", x, x)
    found = []
    for start in range(0, len(x), _BLOCK):
        block = x[start : start + _BLOCK]
        squared = squares[start : start + _BLOCK, None] + squares - 2 * block @ x.T
        own = np.arange(len(block))
        squared[own, start + own] = np.inf
        found.append(np.sqrt(np.maximum(np.partition(squared, k - 1, axis=1)[:, :k], 0)).mean(axis=1))
    return np.concatenate(found)


def _is_constant(x: np.ndarray) -> bool:
    """Lengths of normalised float32 vectors differ in the eighth digit: no order of theirs means anything."""
    return bool(np.ptp(x) <= 1e-6 * np.abs(x).max())
