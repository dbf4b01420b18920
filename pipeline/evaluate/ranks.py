"""Exact search over all targets in blocks of queries: ranks of relevant targets, and most similar pairs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.evaluate.similarity import crossed, prepared
from pipeline.evaluate.task import Similarity

BLOCK = 1 << 24  # similarities per block: 64 MiB in float32
TIE = 1e-6  # relative; similarities of equal vectors differ by rounding within a matrix product


def relevant_ranks(
    kind: Similarity,
    queries: np.ndarray,
    targets: np.ndarray,
    relevant: Sequence[np.ndarray],
    own: np.ndarray,
) -> list[np.ndarray]:
    """Return per query the ascending ranks, from 1, of its relevant targets among all targets but itself.

    Ties count against: an irrelevant target precedes a relevant one of the same similarity.

    Args:
        kind: similarity.
        queries: (q, d).
        targets: (t, d).
        relevant: ascending indices of the relevant targets of each query; arrays may be shared.
        own: the query's own index among the targets, -1 for none.
    """
    return [
        _ranks(row, relevant[query], int(own[query]))
        for start, block in similarity_blocks(kind, queries, targets)
        for query, row in enumerate(block, start)
    ]


def similarity_blocks(
    kind: Similarity, queries: np.ndarray, targets: np.ndarray
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (first query, similarities (b, t)) in blocks of at most `BLOCK` similarities."""
    queries, targets = prepared(kind, queries), prepared(kind, targets)
    step = max(1, BLOCK // max(len(targets), 1))
    for start in range(0, len(queries), step):
        yield start, crossed(kind, queries[start : start + step], targets)


def _ranks(similarities: np.ndarray, relevant: np.ndarray, own: int) -> np.ndarray:
    """Compute the ranks of the relevant targets in a row (t,) of similarities."""
    relevant = relevant[relevant != own]
    rising = np.sort(similarities[relevant])
    bounds = rising - TIE * np.maximum(1.0, np.abs(rising))
    # A target precedes the i-th relevant one if it reaches its bound. Count the targets by the number of
    # bounds that they reach, without the relevant ones and the query itself.
    level = np.searchsorted(bounds, similarities, side="right")
    ignored = np.r_[relevant, own] if own >= 0 else relevant
    size = len(bounds) + 1
    reached = np.bincount(level, minlength=size) - np.bincount(level[ignored], minlength=size)
    before = np.cumsum(reached[::-1])[:-1]  # starting with the best relevant target
    return np.arange(1, len(bounds) + 1) + before


@dataclass(frozen=True)
class MinedPairs:
    """Most similar pairs of rows, in descending order of similarity.

    Attributes:
        indices: (p, 2) row indices, the smaller first.
        similarity: (p,).
        above: number of all pairs at or above each threshold, mined or not.
    """

    indices: np.ndarray
    similarity: np.ndarray
    above: np.ndarray


def most_similar(
    kind: Similarity, x: np.ndarray, neighbours: int, pairs: int, thresholds: Sequence[float] = ()
) -> MinedPairs:
    """Find the most similar pairs of rows of x (n, d) among the `neighbours` nearest of every row.

    Args:
        kind: similarity.
        x: (n, d).
        neighbours: number of nearest rows to compare per row.
        pairs: largest number of pairs to return.
        thresholds: similarities from which all pairs are counted.
    """
    keys, values, above = np.empty(0, np.int64), np.empty(0, np.float64), np.zeros(len(thresholds), np.int64)
    for start, block in similarity_blocks(kind, x, x):
        np.fill_diagonal(block[:, start:], -np.inf)
        above += np.array(
            [np.count_nonzero(np.triu(block >= bound, start + 1)) for bound in thresholds], np.int64
        )
        near = _nearest(block, neighbours)
        found = np.repeat(start + np.arange(len(block)), near.shape[1])
        low, high = np.minimum(found, near.ravel()), np.maximum(found, near.ravel())
        similarity = np.take_along_axis(block, near, axis=1).ravel()
        keys, values = _best(np.r_[keys, low * len(x) + high], np.r_[values, similarity], pairs)
    return MinedPairs(np.stack(np.divmod(keys, max(len(x), 1)), axis=1), values, above)


def _nearest(block: np.ndarray, neighbours: int) -> np.ndarray:
    """Return (b, k) indices of the k largest entries of each row, without the row itself (minus infinity)."""
    k = min(neighbours, block.shape[1] - 1)
    return np.argpartition(-block, k - 1, axis=1)[:, :k] if k else np.empty((len(block), 0), np.int64)


def _best(keys: np.ndarray, values: np.ndarray, pairs: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the `pairs` largest values with their keys, each key once, in descending order, then by key."""
    order = np.lexsort((-values, keys))
    once = order[np.r_[True, np.diff(keys[order]) > 0]] if len(order) else order
    kept = once[np.lexsort((keys[once], -values[once]))][:pairs]
    return keys[kept], values[kept]
