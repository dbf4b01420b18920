"""Correlation of two samples: of the values (Pearson) and of their ranks (Spearman)."""

import numpy as np

_ROUNDING = 1e-12  # of values about 1: cosines of parallel vectors differ by less


def constant(x: np.ndarray) -> bool:
    """Whether all values of x (n,) are alike up to float64 rounding; also True for fewer than two."""
    return len(x) < 2 or bool(np.ptp(x) <= _ROUNDING * max(1.0, float(np.abs(x).max())))


def pearson(x: np.ndarray, y: np.ndarray) -> float:
    """Linear correlation of x and y (n,) in [-1, 1]; nan where either is constant."""
    if constant(x) or constant(y):
        return float("nan")
    x, y = x - x.mean(), y - y.mean()
    return float(np.clip((x / np.linalg.norm(x)) @ (y / np.linalg.norm(y)), -1.0, 1.0))


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    """Correlation of the ranks of x and y (n,), ties by average ranks, in [-1, 1]; nan where either is constant.

    The short form 1 - 6 sum(d^2) / (n (n^2 - 1)) holds without ties only.
    """
    from scipy.stats import rankdata  # a second to import, which most commands do without

    return float("nan") if constant(x) or constant(y) else pearson(rankdata(x), rankdata(y))
