"""The shape of a set of vectors: do they fill their space or crowd in a cone? Every figure carries what it was measured on."""

from collections.abc import Iterator

import numpy as np
from scipy.special import logsumexp

from pipeline.config import Settings
from pipeline.errors import DataError

EXACT_ROWS = 5_000  # 12.5 million pairs: a second or two
SAMPLED_PAIRS = (
    1_000_000  # above: the standard error of the mean of exp(-2 d^2), which lies in [0, 1], is below 0.0005
)
SHARPNESS = 2.0  # t of Wang & Isola 2020
_BLOCK = 512  # rows whose products with all others are held at once


class Figure(Settings):
    """A measured number, how many of what are behind it, and the seed that drew them (null: all there are)."""

    value: float
    count: int
    of: str
    """sentences, pairs, words ..."""
    seed: int | None = None


def unit_rows(x: np.ndarray) -> np.ndarray:
    """Rows of x (n, d) with length one, float64; a zero row stays zero, and so has cosine 0 with everything."""
    x = np.asarray(x, dtype=np.float64)
    return np.asarray(x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12))


def cosines(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """(n,) cosine of row i of left with row i of right, both (n, d); within [-1, 1]."""
    return np.clip(np.einsum("nd,nd->n", unit_rows(left), unit_rows(right)), -1, 1)


def anisotropy(x: np.ndarray) -> float:
    """Mean cosine of two different rows of x (n, d), over all ordered pairs: 0 for vectors in all directions, 1 when all point one way.

    Jiang et al. 2022 (PromptBERT), eq. 1, in O(n d): the sum over i != j is |sum of unit rows|^2 minus the rows' own products. DataError below two rows.
    """
    u = unit_rows(_at_least_two(x))
    total = u.sum(axis=0)
    return float((total @ total - np.einsum("nd,nd->", u, u)) / (len(u) * (len(u) - 1)))


def alignment(left: np.ndarray, right: np.ndarray) -> float:
    """Mean squared distance of normalised pairs, left and right (n, d): 0 when each pair coincides. Wang & Isola 2020, alpha = 2. DataError without pairs."""
    if not len(left) or len(left) != len(right):
        raise DataError(
            "alignment",
            "as many left as right vectors, at least one",
            f"{len(left)} and {len(right)}",
            "give pairs of the same meaning",
        )
    return float(np.maximum(2 - 2 * cosines(left, right), 0).mean())


def uniformity(x: np.ndarray, seed: int = 0) -> Figure:
    """log of the mean of exp(-2 |x_i - x_j|^2) over pairs of different normalised rows of x (n, d), in [-8, 0]: the lower, the more evenly they fill the sphere.

    Wang & Isola 2020. All pairs up to 5,000 rows, else a million drawn by `seed`. DataError below two rows.
    """
    u = unit_rows(_at_least_two(x))
    exact = len(u) <= EXACT_ROWS
    count, total = 0, -np.inf
    for part in _all_pairs(u) if exact else _some_pairs(u, seed):
        count += len(part)
        total = (
            np.logaddexp(total, logsumexp(-SHARPNESS * np.maximum(2 - 2 * part, 0))) if len(part) else total
        )
    return Figure(value=float(total - np.log(count)), count=count, of="pairs", seed=None if exact else seed)


def participation_ratio(singular_values: np.ndarray) -> float:
    """(sum l)^2 / sum l^2 for l = sigma^2: how many directions carry the vectors; 1 if one does, d if all do alike."""
    energy = np.asarray(singular_values, dtype=np.float64) ** 2
    return float(energy.sum() ** 2 / max(float((energy**2).sum()), np.finfo(np.float64).tiny))


def _all_pairs(u: np.ndarray) -> Iterator[np.ndarray]:
    """Cosines of all pairs i < j, in blocks."""
    for start in range(0, len(u), _BLOCK):
        block = u[start : start + _BLOCK] @ u[start:].T
        yield block[np.triu_indices(len(block), 1, block.shape[1])]


def _some_pairs(u: np.ndarray, seed: int) -> Iterator[np.ndarray]:
    """Cosines of random pairs of different rows, in blocks."""
    rng = np.random.default_rng(seed)
    for _ in range(0, SAMPLED_PAIRS, 64 * _BLOCK):
        left = rng.integers(len(u), size=64 * _BLOCK)
        right = (left + rng.integers(1, len(u), size=len(left))) % len(u)
        yield np.einsum("nd,nd->n", u[left], u[right])


def _at_least_two(x: np.ndarray) -> np.ndarray:
    if len(x) < 2:
        raise DataError("geometry", "at least two vectors", str(len(x)), "give more text")
    return x
