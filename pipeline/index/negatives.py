"""Mining of hard negatives: near neighbours of an anchor that are unlikely to be false negatives."""

from collections.abc import Sequence

import numpy as np

from pipeline.index.truth import NO_NEIGHBOUR, Neighbours
from pipeline.settings.training import MineSettings


def without_positives(found: Neighbours, positives: Sequence[np.ndarray]) -> Neighbours:
    """Replace the positives among the neighbours by NO_NEIGHBOUR.

    Args:
        found: (n, k) neighbours, best first.
        positives: n arrays: the addresses of all positives of each query.
    """
    if not len(positives):
        return found
    is_positive = [np.isin(row, own) for row, own in zip(found.addresses, positives, strict=True)]
    return Neighbours(np.where(np.stack(is_positive), NO_NEIGHBOUR, found.addresses), found.scores)


def pick(
    found: Neighbours, positives: np.ndarray, pairs: np.ndarray, settings: MineSettings, seed: int
) -> np.ndarray:
    """Pick hard negatives for each pair among the neighbours of its anchor.

    Neighbours are ranked from 0, NO_NEIGHBOUR not counted; ranks from `skip` to `neighbours` are candidates.

    Args:
        found: (n, k) neighbours, best first.
        positives: (n,) cosine of each pair.
        pairs: (n,) number of each pair. With `seed` it determines the pair's random negatives, whatever the
            other pairs are.

    Returns:
        Addresses (n, settings.negatives) int64, with NO_NEIGHBOUR after the last one.
    """
    exists = found.addresses != NO_NEIGHBOUR
    ranks = np.cumsum(exists, axis=1) - 1
    candidates = exists & (ranks >= settings.skip) & (ranks < settings.neighbours)
    if settings.margin is not None:
        candidates &= found.scores <= (positives - np.float32(settings.margin))[:, None]
    if settings.most is not None:
        candidates &= found.scores <= np.float32(settings.most)
    order = _random(ranks, pairs, seed) if settings.pick == "random" else ranks
    best = np.lexsort((order, ~candidates), axis=1)[:, : settings.negatives]
    chosen = np.take_along_axis(np.where(candidates, found.addresses, NO_NEIGHBOUR), best, axis=1)
    return np.pad(chosen, ((0, 0), (0, settings.negatives - chosen.shape[1])), constant_values=NO_NEIGHBOUR)


def _random(ranks: np.ndarray, pairs: np.ndarray, seed: int) -> np.ndarray:
    """Return (n, k) pseudo-random uint64 that depend on seed, pair and rank only.

    The division of the corpus into units has therefore no effect.
    """
    with np.errstate(over="ignore"):
        rows = _splitmix64(_splitmix64(np.full(1, seed, np.uint64)) ^ pairs.astype(np.uint64))
        return _splitmix64(rows[:, None] ^ ranks.astype(np.uint64))


def _splitmix64(values: np.ndarray) -> np.ndarray:
    """Hash by splitmix64 (Steele et al. 2014): every bit of the result depends on every bit of the value."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(values ^ (values >> np.uint64(31)))
