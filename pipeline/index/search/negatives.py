"""Mine hard negatives: neighbours of an anchor that probably differ from it in meaning.

This module is separate from its only user, the tasks of `flows/train/`, because it knows nothing of workers
or files.
"""

from collections.abc import Sequence

import numpy as np

from pipeline.index.measure.truth import NO_NEIGHBOUR, Neighbours
from pipeline.settings.training import MineSettings


def without_positives(neighbours: Neighbours, positives: Sequence[np.ndarray]) -> Neighbours:
    """Replace the addresses of positives among the neighbours by NO_NEIGHBOUR.

    Args:
        neighbours: (n, k) neighbours, best first.
        positives: n arrays, the addresses of each query's positives; empty if there are none at all.
    """
    if not len(positives):
        return neighbours
    pairs = zip(neighbours.addresses, positives, strict=True)
    is_positive = np.stack([np.isin(addresses, of_query) for addresses, of_query in pairs])
    return Neighbours(np.where(is_positive, NO_NEIGHBOUR, neighbours.addresses), neighbours.scores)


def pick_negatives(
    neighbours: Neighbours, cosines: np.ndarray, pairs: np.ndarray, settings: MineSettings, seed: int
) -> np.ndarray:
    """Pick hard negatives for each (anchor, positive) pair among the neighbours of its anchor.

    Neighbours are ranked from 0 without counting NO_NEIGHBOUR. The settings say which ranks and scores are
    candidates, and whether the nearest or random candidates are picked.

    Args:
        neighbours: (n, k) neighbours of the anchors, best first; their scores are cosines with the anchor.
        cosines: (n,) cosine of anchor and positive.
        pairs: (n,) number of each pair. The random negatives of a pair depend on its number and `seed` only.

    Returns:
        Addresses (n, settings.negatives) int64, filled up with NO_NEIGHBOUR if there are too few candidates.
    """
    exists = neighbours.addresses != NO_NEIGHBOUR
    ranks = np.cumsum(exists, axis=1) - 1
    is_candidate = exists & (ranks >= settings.skip) & (ranks < settings.neighbours)
    if settings.margin is not None:
        is_candidate &= neighbours.scores <= (cosines - np.float32(settings.margin))[:, None]
    if settings.most is not None:
        is_candidate &= neighbours.scores <= np.float32(settings.most)
    order = _random_order(ranks, pairs, seed) if settings.pick == "random" else ranks
    columns = np.lexsort((order, ~is_candidate), axis=1)[:, : settings.negatives]
    chosen = np.take_along_axis(np.where(is_candidate, neighbours.addresses, NO_NEIGHBOUR), columns, axis=1)
    return np.pad(chosen, ((0, 0), (0, settings.negatives - chosen.shape[1])), constant_values=NO_NEIGHBOUR)


def _random_order(ranks: np.ndarray, pairs: np.ndarray, seed: int) -> np.ndarray:
    """Return pseudo-random sort keys (n, k) uint64 that depend on seed, pair and rank only."""
    with np.errstate(over="ignore"):
        rows = _splitmix64(_splitmix64(np.full(1, seed, np.uint64)) ^ pairs.astype(np.uint64))
        return _splitmix64(rows[:, None] ^ ranks.astype(np.uint64))


def _splitmix64(values: np.ndarray) -> np.ndarray:
    """Hash uint64 values with splitmix64 (Steele et al. 2014)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(values ^ (values >> np.uint64(31)))
