"""Hard negatives among an anchor's neighbours: near, but not so near that they are probably right answers."""

from collections.abc import Sequence

import numpy as np

from pipeline.index.truth import NO_NEIGHBOUR, Neighbours
from pipeline.settings.training import MineSettings


def without_known(found: Neighbours, known: Sequence[np.ndarray]) -> Neighbours:
    """Replace answers that are known to be right by NO_NEIGHBOUR.

    Args:
        known: for each query, the addresses of its right answers.
    """
    if not len(known):
        return found
    right = [np.isin(row, own) for row, own in zip(found.addresses, known, strict=True)]
    return Neighbours(np.where(np.stack(right), NO_NEIGHBOUR, found.addresses), found.scores)


def pick(
    found: Neighbours, positives: np.ndarray, pairs: np.ndarray, settings: MineSettings, seed: int
) -> np.ndarray:
    """Pick hard negatives for each pair among the neighbours of its anchor.

    Neighbours are ranked from 0, NO_NEIGHBOUR not counted; ranks from `skip` to `neighbours` are candidates.

    Args:
        found: (n, k) neighbours, best first.
        positives: (n,) cosine of each pair.
        pairs: (n,) number of each pair, by which random negatives are drawn. The same pair draws the same
            ones whatever the other pairs are.

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
    """Return (n, k) pseudo-random uint64, which depend on seed, pair and rank alone.

    So it does not matter how the corpus is divided into units.
    """
    with np.errstate(over="ignore"):
        rows = _mixed(_mixed(np.full(1, seed, np.uint64)) ^ pairs.astype(np.uint64))
        return _mixed(rows[:, None] ^ ranks.astype(np.uint64))


def _mixed(values: np.ndarray) -> np.ndarray:
    """Apply splitmix64 (Steele et al. 2014): every bit of the result depends on every bit of the value."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(values ^ (values >> np.uint64(31)))
