"""Geometry of a set of vectors: whether they fill their space or lie in a narrow cone."""

from collections.abc import Iterator

import numpy as np
from scipy.special import logsumexp

from pipeline.config import Settings
from pipeline.errors import DataError
from pipeline.stats.sample import random_pairs

EXACT_ROWS = 5_000  # up to here all pairs are used: 12.5 million take a second or two
# Pairs drawn for more rows: the mean of exp(-2 d^2), in [0, 1], then has a standard error below 0.0005.
SAMPLED_PAIRS = 1_000_000
SHARPNESS = 2.0  # t of Wang & Isola 2020
_BLOCK = 512  # rows per block of inner products
_PAIR_BLOCK = 1 << 15  # sampled pairs per block: two float64 arrays of 200 MB for vectors of 768 dimensions


class Metric(Settings):
    """A measured value, the number and kind of the items it was measured on, and the seed of their sample."""

    value: float
    count: int
    of: str
    """what `count` counts: sentences, pairs, words ..."""
    seed: int | None = None
    """None if all items were used"""


def unit_rows(x: np.ndarray) -> np.ndarray:
    """Normalize the rows of x (n, d) to length 1, in float64.

    Zero rows stay zero, with cosine 0 to every row.
    """
    x = np.asarray(x, dtype=np.float64)
    return np.asarray(x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12))


def cosines(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return (n,) cosines of row i of left with row i of right, both (n, d); clipped to [-1, 1]."""
    return np.clip(np.einsum("nd,nd->n", unit_rows(left), unit_rows(right)), -1, 1)


def anisotropy(x: np.ndarray) -> float:
    """Mean cosine of two different rows of x (n, d): 0 for isotropic vectors, 1 if all are parallel.

    Exact over all pairs in O(n d): the sum of the cosines over i != j is |sum of unit rows|^2 minus the inner
    products of the rows with themselves. Source: Jiang et al. 2022 (PromptBERT), eq. 1.

    Raises:
        DataError: fewer than two rows.

    >>> round(anisotropy(np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])), 4)  # mean of 0, -1, 0
    -0.3333
    """
    u = unit_rows(_at_least_two(x))
    total = u.sum(axis=0)
    return float((total @ total - np.einsum("nd,nd->", u, u)) / (len(u) * (len(u) - 1)))


def alignment(left: np.ndarray, right: np.ndarray) -> float:
    """Mean squared distance of normalized pairs, left and right (n, d); 0 if both sides are equal.

    Source: Wang & Isola 2020, alpha = 2.

    Raises:
        DataError: no pairs, or different numbers of rows.

    >>> round(alignment(np.array([[1.0, 0.0]]), np.array([[0.0, 2.0]])), 4)
    2.0
    """
    if not len(left) or len(left) != len(right):
        raise DataError(
            "alignment",
            "as many left as right vectors, at least one",
            f"{len(left)} and {len(right)}",
            "pass pairs of the same meaning",
        )
    return float(np.maximum(2 - 2 * cosines(left, right), 0).mean())


def uniformity(x: np.ndarray, seed: int = 0) -> Metric:
    """Logarithm of the mean of exp(-2 |x_i - x_j|^2) over pairs of different normalized rows of x (n, d).

    The value is in [-8, 0]; lower means that the rows fill the sphere more uniformly (Wang & Isola 2020). It
    uses all pairs of up to EXACT_ROWS rows, else at least SAMPLED_PAIRS random pairs.

    Raises:
        DataError: fewer than two rows.

    >>> round(uniformity(np.array([[1.0, 0.0], [-1.0, 0.0]])).value, 4)
    -8.0
    """
    u = unit_rows(_at_least_two(x))
    exact = len(u) <= EXACT_ROWS
    count, log_sum = 0, -np.inf
    for block in _all_cosines(u) if exact else _sampled_cosines(u, seed):
        count += len(block)
        if len(block):
            log_sum = np.logaddexp(log_sum, logsumexp(-SHARPNESS * np.maximum(2 - 2 * block, 0)))
    return Metric(value=float(log_sum - np.log(count)), count=count, of="pairs", seed=None if exact else seed)


def participation_ratio(singular_values: np.ndarray) -> float:
    """Effective number of directions, from 1 to d: (sum l)^2 / sum l^2 with l = squared singular values.

    >>> round(participation_ratio(np.array([1.0, 1.0, 0.0])), 4)
    2.0
    """
    energy = np.asarray(singular_values, dtype=np.float64) ** 2
    return float(energy.sum() ** 2 / max(float((energy**2).sum()), np.finfo(np.float64).tiny))


def _all_cosines(u: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the cosines of all pairs i < j, in blocks."""
    for start in range(0, len(u), _BLOCK):
        block = u[start : start + _BLOCK] @ u[start:].T
        yield block[np.triu_indices(len(block), 1, block.shape[1])]


def _sampled_cosines(u: np.ndarray, seed: int) -> Iterator[np.ndarray]:
    """Yield the cosines of random pairs of different rows, in blocks."""
    rng = np.random.default_rng(seed)
    for _ in range(0, SAMPLED_PAIRS, _PAIR_BLOCK):
        left, right = random_pairs(len(u), _PAIR_BLOCK, rng)
        yield np.einsum("nd,nd->n", u[left], u[right])


def _at_least_two(x: np.ndarray) -> np.ndarray:
    """Return x (n, d) unchanged; raise DataError if it has fewer than two rows."""
    if len(x) < 2:
        raise DataError("geometry", "at least two vectors", str(len(x)), "use more text")
    return x
