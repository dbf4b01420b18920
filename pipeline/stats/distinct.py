"""Estimate a number of distinct values from their smallest hashes (Beyer et al. 2007, basic estimator).

This module is separate from its only user, `flows/night/key_facts.py`, because it knows neither texts nor
units.
"""

import numpy as np

KEPT = 4_096
"""Number of hashes that are kept: the estimate has a relative standard error of 1 / sqrt(KEPT - 2), 1.6 %."""


def smallest_distinct(hashes: np.ndarray) -> np.ndarray:
    """Return the smallest distinct hashes, at most `KEPT`, ascending.

    Results merge: applied to the joined results of several samples, the function gives the result of all
    hashes.

    Args:
        hashes: (n,) uint64, uniformly distributed.

    >>> smallest_distinct(np.array([7, 3, 7], dtype=np.uint64)).tolist()
    [3, 7]
    """
    if len(hashes) > 8 * KEPT:  # the smallest hashes usually suffice, and are sorted faster
        limit = np.uint64(2**64 // len(hashes) * 4 * KEPT)
        if len(found := np.unique(hashes[hashes < limit])) >= KEPT:
            return found[:KEPT]
    return np.unique(hashes)[:KEPT]


def estimate_distinct(smallest: np.ndarray) -> int:
    """Estimate the number of distinct hashes from the result of `smallest_distinct`.

    The estimate is exact if there are fewer than KEPT.

    >>> estimate_distinct(smallest_distinct(np.array([7, 3, 7], dtype=np.uint64)))
    2
    """
    if len(smallest) < KEPT:
        return len(smallest)
    return round((KEPT - 1) * 2.0**64 / float(smallest[KEPT - 1]))
