"""Hubs: texts that stand among the nearest of suspiciously many others, and antihubs, which search never finds."""

from dataclasses import dataclass

import numpy as np

from pipeline.errors import DataError
from pipeline.stats.geometry import unit_rows

_BLOCK = 512  # rows whose similarities to all others are held at once, fewer where there are many others:
_HELD = 1 << 23  # 64 MB of similarities


@dataclass(frozen=True, eq=False)
class Hubness:
    """counts (n,): N_k of every vector, the number of others that have it among their k nearest; their mean is k."""

    counts: np.ndarray
    k: int

    @property
    def skewness(self) -> float:
        """Third standardised moment of N_k: 0 where all are found alike, above 1 a few hubs stand in most answers. Radovanovic et al. 2010, eq. 1."""
        deviations = self.counts - self.counts.mean()
        spread = np.sqrt((deviations**2).mean())
        return float((deviations**3).mean() / spread**3) if spread > 0 else 0.0

    @property
    def largest_share(self) -> float:
        """Share of the other vectors that have the most frequent hub among their k nearest."""
        return float(self.counts.max() / (len(self.counts) - 1))

    @property
    def antihub_share(self) -> float:
        """Share of the vectors that are nobody's neighbour."""
        return float((self.counts == 0).mean())


def hubness(x: np.ndarray, k: int) -> Hubness:
    """k-occurrence of every row of x (n, d) by cosine; a row is no neighbour of its own. DataError unless n > k."""
    if len(x) <= k:
        raise DataError(
            "hubness",
            f"more than {k} vectors",
            str(len(x)),
            "give more text, or lower evaluate.geometry.neighbours",
        )
    nearest = nearest_rows(unit_rows(x), k)
    return Hubness(np.bincount(nearest.ravel(), minlength=len(x)), k)


def nearest_rows(x: np.ndarray, k: int) -> np.ndarray:
    """(n, k) places of the k rows with the largest product with each row of x (n, d), in no order, itself left out."""
    found, rows = [], max(1, min(_BLOCK, _HELD // max(len(x), 1)))
    for start in range(0, len(x), rows):
        products = x[start : start + rows] @ x.T
        own = np.arange(len(products))
        products[own, start + own] = -np.inf
        found.append(np.argpartition(-products, k - 1, axis=1)[:, :k])
    return np.concatenate(found)
