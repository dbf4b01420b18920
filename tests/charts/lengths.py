"""Histograms of text lengths for tests of charts and reports."""

import numpy as np

from pipeline.stats.sample import Histogram


def length_histogram(lengths: np.ndarray, limit: int, bins: int = 128) -> Histogram:
    """Histogram of token counts (n,) in bins of equal integer width up to `limit`; the last bin has the
    longer ones.
    """
    width = -(-limit // bins)
    edges = np.append(np.arange(0, limit, width), [limit + 1, limit + 1 + width])
    counts, _ = np.histogram(np.minimum(lengths, limit + 1), edges)
    mean = float(np.mean(lengths)) if len(lengths) else 0.0
    return Histogram(tuple(map(float, edges)), tuple(map(int, counts)), mean)
