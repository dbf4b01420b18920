"""Which of an anchor's neighbours are its hard negatives: near, and yet not so near that they must be right."""

from collections.abc import Sequence

import numpy as np

from pipeline.index.truth import NOBODY, Neighbours
from pipeline.settings.training import MineSettings


def without_known(found: Neighbours, known: Sequence[np.ndarray]) -> Neighbours:
    """The answers without what is known to be right, and without those that there are none of: NOBODY takes
    their place. known: addresses, of each query.
    """
    right = (
        np.stack([np.isin(row, mine) for row, mine in zip(found.addresses, known, strict=True)])
        if len(known)
        else np.zeros(found.addresses.shape, bool)
    )
    return Neighbours(np.where(right, NOBODY, found.addresses), found.scores)


def pick(
    found: Neighbours, positives: np.ndarray, pairs: np.ndarray, settings: MineSettings, seed: int
) -> np.ndarray:
    """Addresses (n, negatives) int64 of each pair's hard negatives, NOBODY behind the last: of its anchor's
    neighbours (n, k), best first, what the settings leave.

    Ranks count what is not NOBODY, from 0: `skip` to `neighbours` are looked at. positives (n,): cosine of
    each pair. pairs (n,): its number, by which random ones are drawn, so that the same pair draws the same
    ones in whatever company.
    """
    there = found.addresses != NOBODY
    ranks = np.cumsum(there, axis=1) - 1
    left = there & (ranks >= settings.skip) & (ranks < settings.neighbours)
    if settings.margin is not None:
        left &= found.scores <= (positives - np.float32(settings.margin))[:, None]
    if settings.most is not None:
        left &= found.scores <= np.float32(settings.most)
    return _first(
        found.addresses,
        left,
        _drawn(ranks, pairs, seed) if settings.pick == "random" else ranks,
        settings.negatives,
    )


def _first(addresses: np.ndarray, left: np.ndarray, order: np.ndarray, count: int) -> np.ndarray:
    """(n, count) of those left with the lowest `order`, lowest first."""
    best = np.lexsort((order, ~left), axis=1)[:, :count]
    taken = np.where(
        np.take_along_axis(left, best, axis=1), np.take_along_axis(addresses, best, axis=1), NOBODY
    )
    return np.pad(taken, ((0, 0), (0, count - taken.shape[1])), constant_values=NOBODY)


def _drawn(ranks: np.ndarray, pairs: np.ndarray, seed: int) -> np.ndarray:
    """(n, k) uint64, as good as random: a function of seed, pair and rank alone, so that it does not matter
    how the corpus is cut into units.
    """
    with np.errstate(over="ignore"):
        return _mixed(
            _mixed(_mixed(np.full(1, seed, np.uint64)) ^ pairs.astype(np.uint64))[:, None]
            ^ ranks.astype(np.uint64)
        )


def _mixed(values: np.ndarray) -> np.ndarray:
    """splitmix64 (Steele et al. 2014): every bit of what comes out depends on every bit that goes in."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(values ^ (values >> np.uint64(31)))
