"""Correlation of two samples: of their values (Pearson) and of their ranks (Spearman)."""

import numpy as np

_TOLERANCE = 1e-12  # relative; larger than the rounding errors of cosines of parallel vectors


def is_constant(x: np.ndarray) -> bool:
    """Return True if all values of x (n,) are equal up to float64 rounding, or if n < 2."""
    return len(x) < 2 or bool(np.ptp(x) <= _TOLERANCE * max(1.0, float(np.abs(x).max())))


def pearson(x: np.ndarray, y: np.ndarray) -> float:
    """Linear correlation of x and y (n,), in [-1, 1]; nan if either is constant.

    >>> round(pearson(np.array([1.0, 2.0, 3.0]), np.array([1.0, 4.0, 9.0])), 4)
    0.9897
    """
    if is_constant(x) or is_constant(y):
        return float("nan")
    x, y = x - x.mean(), y - y.mean()
    # clipped: rounding gives values such as 1.0000000000000004
    return float(np.clip((x / np.linalg.norm(x)) @ (y / np.linalg.norm(y)), -1.0, 1.0))


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    """Rank correlation of x and y (n,), with average ranks for ties, in [-1, 1]; nan if either is constant.

    The textbook formula 1 - 6 sum(d^2) / (n (n^2 - 1)) is valid only without ties.

    >>> round(spearman(np.array([1.0, 2.0, 3.0]), np.array([1.0, 4.0, 9.0])), 4)
    1.0
    >>> round(spearman(np.array([1.0, 1.0, 2.0]), np.array([1.0, 2.0, 3.0])), 4)
    0.866
    """
    from scipy.stats import rankdata  # takes a second to import, and most commands do not need it

    return float("nan") if is_constant(x) or is_constant(y) else pearson(rankdata(x), rankdata(y))
