"""Hubness: vectors that are nearest neighbours of many others (hubs), or of none (antihubs)."""

from dataclasses import dataclass

import numpy as np

from pipeline.errors import DataError
from pipeline.stats.geometry import unit_rows

_BLOCK = 512  # rows per block of similarities
_MAX_SIMILARITIES = 1 << 23  # per block: 64 MB of float64


@dataclass(frozen=True, eq=False)
class Hubness:
    """k-occurrence of each vector: the number of other vectors that have it among their k nearest.

    Attributes:
        counts: (n,) k-occurrence of every vector; the mean is k.
    """

    counts: np.ndarray

    @property
    def skewness(self) -> float:
        """Third standardized moment of the counts: 0 if symmetric, above 1 if there are a few large hubs.

        Source: Radovanovic et al. 2010, eq. 1.
        """
        deviations = self.counts - self.counts.mean()
        spread = np.sqrt((deviations**2).mean())
        return float((deviations**3).mean() / spread**3) if spread > 0 else 0.0

    @property
    def largest_proportion(self) -> float:
        """Proportion of the other vectors that have the largest hub among their k nearest."""
        return float(self.counts.max() / (len(self.counts) - 1))

    @property
    def antihub_proportion(self) -> float:
        """Proportion of the vectors that are among the k nearest of no other vector."""
        return float((self.counts == 0).mean())


def hubness(x: np.ndarray, k: int) -> Hubness:
    """Count the k-occurrences of the rows of x (n, d) by cosine, excluding each row itself.

    Raises:
        DataError: unless n > k.
    """
    if len(x) <= k:
        raise DataError(
            "hubness",
            f"more than {k} vectors",
            str(len(x)),
            "use more text, or lower evaluate.geometry.neighbours",
        )
    return Hubness(np.bincount(nearest_rows(unit_rows(x), k).ravel(), minlength=len(x)))


def nearest_rows(x: np.ndarray, k: int) -> np.ndarray:
    """Return (n, k) indices of the k rows with the largest inner product with each row of x (n, d).

    A row is not its own neighbour; the k indices of a row are in no particular order.
    """
    blocks, block_rows = [], max(1, min(_BLOCK, _MAX_SIMILARITIES // max(len(x), 1)))
    for start in range(0, len(x), block_rows):
        products = x[start : start + block_rows] @ x.T
        np.fill_diagonal(products[:, start:], -np.inf)  # excludes each row itself
        blocks.append(np.argpartition(-products, k - 1, axis=1)[:, :k])
    return np.concatenate(blocks)
