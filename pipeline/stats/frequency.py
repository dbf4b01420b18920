"""Norms and neighbour distances of word vectors by the frequency of the words (Li et al. 2020, BERT-flow)."""

from itertools import pairwise

import numpy as np

from pipeline.config import Settings
from pipeline.stats.lexical import nearest_distances

MAX_WORDS = 10_000  # the most frequent words only, because neighbour distances take quadratic time
_EDGES = (0, 100, 500, 5_000, MAX_WORDS)  # bands of frequency ranks in table 1 of Li et al.
_NEIGHBOURS = (3, 5, 7)  # numbers k of nearest words in the same table


class FrequencyBand(Settings):
    """Word vectors of one band of frequency ranks; rank 1 is the most frequent word."""

    first_rank: int
    last_rank: int
    words: int
    """number of words in the band; the last band of a small vocabulary is not full"""
    norm: float
    """mean L2 norm"""
    distances: dict[int, float]
    """k -> mean L2 distance to the k nearest words, among all words and not only in the band"""


def frequency_bands(
    table: np.ndarray, counts: np.ndarray
) -> tuple[tuple[FrequencyBand, ...], dict[str, str]]:
    """Measure bands of frequency ranks: 1 to 100, to 500, to 5,000 and to 10,000.

    Args:
        table: (m, d) rows of m words.
        counts: (m,) number of occurrences of each word. Words of equal frequency keep their order.

    Returns:
        The bands that have a word; and, if there are none, the name of the table with the reason.
    """
    if len(counts) <= max(_NEIGHBOURS):
        reason = f"needs more than {max(_NEIGHBOURS)} words, there are {len(counts)}"
        return (), {"frequency_table": reason}
    rows = table[by_frequency(counts)].astype(np.float64)
    norms, distances = np.linalg.norm(rows, axis=1), nearest_distances(rows, max(_NEIGHBOURS))
    bands = tuple(
        FrequencyBand(
            first_rank=start + 1,
            last_rank=end,
            words=len(norms[start:end]),
            norm=float(norms[start:end].mean()),
            distances={k: float(distances[start:end, :k].mean()) for k in _NEIGHBOURS},
        )
        for start, end in pairwise(_EDGES)
        if start < len(rows)
    )
    return bands, {}


def by_frequency(counts: np.ndarray) -> np.ndarray:
    """Return the indices of the `MAX_WORDS` most frequent words, by counts (m,) descending."""
    return np.argsort(-counts, kind="stable")[:MAX_WORDS]
