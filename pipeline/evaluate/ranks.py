"""Exact search over all targets, a block of queries at a time: the ranks of what should be found, and the pairs that are most alike."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.evaluate.similarity import Similarity, crossed, prepared

BLOCK = 1 << 24  # similarities held at once: 64 MiB in float32
TIE = 1e-6  # relative: products of equal vectors differ by a few roundings between places of a matrix product


@dataclass(frozen=True)
class Relevant:
    """Which targets each query should find. targets: ascending places per query, arrays may be shared; own: the query's own place among the targets, -1 for none."""

    targets: Sequence[np.ndarray]
    own: np.ndarray


def relevant_ranks(
    kind: Similarity, queries: np.ndarray, targets: np.ndarray, relevant: Relevant
) -> list[np.ndarray]:
    """Per query the ascending ranks, from 1, of its relevant targets among all targets but its own place; queries (q, d), targets (t, d).

    A tie counts against: a target that is not relevant goes before a relevant one of the same similarity.
    """
    return [
        _ranks(row, relevant.targets[query], int(relevant.own[query]))
        for start, block in similarity_blocks(kind, queries, targets)
        for query, row in enumerate(block, start)
    ]


def similarity_blocks(
    kind: Similarity, queries: np.ndarray, targets: np.ndarray
) -> Iterator[tuple[int, np.ndarray]]:
    """(first query, similarities (b, t)) for all queries in order, as many at a time as `BLOCK` allows."""
    queries, targets = prepared(kind, queries), prepared(kind, targets)
    step = max(1, BLOCK // max(len(targets), 1))
    for start in range(0, len(queries), step):
        yield start, crossed(kind, queries[start : start + step], targets)


def _ranks(similarities: np.ndarray, relevant: np.ndarray, own: int) -> np.ndarray:
    """Places of the relevant ones in a row (t,) of similarities."""
    relevant = relevant[relevant != own]
    rising = np.sort(similarities[relevant])
    bounds = rising - TIE * np.maximum(1.0, np.abs(rising))
    # a target is before the i-th relevant one if it reaches its bound: count all by the number of bounds that they reach, less those that compete with nobody
    level = np.searchsorted(bounds, similarities, side="right")
    apart = np.r_[relevant, own] if own >= 0 else relevant
    reached = np.bincount(level, minlength=len(bounds) + 1) - np.bincount(
        level[apart], minlength=len(bounds) + 1
    )
    before = np.cumsum(reached[::-1])[:-1]  # for the best relevant one first
    return np.arange(1, len(bounds) + 1) + before


@dataclass(frozen=True)
class Mined:
    """Pairs of rows, most alike first: places (p, 2) with the smaller first, similarity (p,). above: all pairs at or above each threshold, mined or not."""

    places: np.ndarray
    similarity: np.ndarray
    above: np.ndarray


def most_alike(
    kind: Similarity, x: np.ndarray, neighbours: int, pairs: int, thresholds: Sequence[float] = ()
) -> Mined:
    """The most similar pairs of rows of x (n, d), among the `neighbours` nearest of every row, at most `pairs` of them."""
    keys, values, above = np.empty(0, np.int64), np.empty(0, np.float64), np.zeros(len(thresholds), np.int64)
    for start, block in similarity_blocks(kind, x, x):
        rows = start + np.arange(len(block))
        block[np.arange(len(block)), rows] = -np.inf
        above += np.array(
            [np.count_nonzero(np.triu(block >= bound, start + 1)) for bound in thresholds], np.int64
        )
        near = _nearest(block, neighbours)
        found, similarity = np.repeat(rows, near.shape[1]), np.take_along_axis(block, near, axis=1).ravel()
        low, high = np.minimum(found, near.ravel()), np.maximum(found, near.ravel())
        keys, values = _best(np.r_[keys, low * len(x) + high], np.r_[values, similarity], pairs)
    return Mined(np.stack(np.divmod(keys, max(len(x), 1)), axis=1), values, above)


def _nearest(block: np.ndarray, neighbours: int) -> np.ndarray:
    """(b, k) places of the largest k of each row, the row's own place (minus infinity) never among them."""
    k = min(neighbours, block.shape[1] - 1)
    return np.argpartition(-block, k - 1, axis=1)[:, :k] if k else np.empty((len(block), 0), np.int64)


def _best(keys: np.ndarray, values: np.ndarray, pairs: int) -> tuple[np.ndarray, np.ndarray]:
    """Each pair once, the largest `pairs` values, falling; of equal values the smaller key first."""
    order = np.lexsort((-values, keys))
    once = order[np.r_[True, np.diff(keys[order]) > 0]] if len(order) else order
    kept = once[np.lexsort((keys[once], -values[once]))][:pairs]
    return keys[kept], values[kept]
