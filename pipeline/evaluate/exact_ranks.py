"""Exact search in blocks of queries: the ranks of relevant targets, and the most similar pairs of rows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.evaluate.similarity import prepare_vectors, similarity_matrix
from pipeline.evaluate.task import Similarity

BLOCK = 1 << 24  # similarities per block: 64 MiB in float32
NEAREST = 3  # example targets kept per query
TIE = 1e-6  # relative difference up to which similarities tie; equal vectors differ by rounding


@dataclass(frozen=True)
class SearchedTargets:
    """Result of ranking targets for queries."""

    ranks: list[np.ndarray]
    """for each query the ascending ranks, from 1, of its relevant targets"""
    nearest: np.ndarray
    """(q, NEAREST) indices of each query's nearest targets, nearest first; -1 if there are fewer"""


def search_targets(
    kind: Similarity,
    queries: np.ndarray,
    targets: np.ndarray,
    relevant: Sequence[np.ndarray],
    self_index: np.ndarray,
) -> SearchedTargets:
    """Rank all targets by similarity to each query, except the query itself.

    Ties count against the query: an irrelevant target precedes a relevant one of the same similarity.

    Args:
        kind: similarity measure.
        queries: (q, d).
        targets: (t, d).
        relevant: for each query the ascending indices of its relevant targets; arrays may be shared.
        self_index: (q,) index of the query itself among the targets, -1 if it is not a target.

    >>> queries, targets = np.array([[1.0, 0.0]]), np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    >>> found = search_targets("cosine", queries, targets, [np.array([2])], np.array([-1]))
    >>> found.ranks[0].tolist(), found.nearest.tolist()
    ([2], [[1, 2, 0]])
    """
    ranks, nearest = list[np.ndarray](), np.full((len(self_index), NEAREST), -1)
    for start, block in similarity_blocks(kind, queries, targets):
        for query, row in enumerate(block, start):
            own = int(self_index[query])
            ranks.append(_ranks(row, relevant[query], own))
            found = _nearest(row, own)
            nearest[query, : len(found)] = found
    return SearchedTargets(ranks, nearest)


def similarity_blocks(
    kind: Similarity, queries: np.ndarray, targets: np.ndarray
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (first query, similarities (b, t)) in blocks of at most `BLOCK` similarities."""
    queries, targets = prepare_vectors(kind, queries), prepare_vectors(kind, targets)
    step = max(1, BLOCK // max(targets.shape[0], 1))
    for start in range(0, queries.shape[0], step):
        yield start, similarity_matrix(kind, queries[start : start + step], targets)


def _nearest(similarities: np.ndarray, self_index: int) -> np.ndarray:
    """Return the indices of the largest similarities (t,) in descending order, without the query itself."""
    count = min(NEAREST + 1, len(similarities))  # one more, in case the query itself is among the nearest
    found = np.argpartition(-similarities, count - 1)[:count]
    found = found[np.lexsort((found, -similarities[found]))]
    return found[found != self_index][:NEAREST]


def _ranks(similarities: np.ndarray, relevant: np.ndarray, self_index: int) -> np.ndarray:
    """Compute the ranks of one query's relevant targets from its similarities (t,)."""
    relevant = relevant[relevant != self_index]
    ascending = np.sort(similarities[relevant])
    bounds = ascending - TIE * np.maximum(1.0, np.abs(ascending))
    # An irrelevant target precedes a relevant one if its similarity reaches the relevant one's bound. Count
    # the irrelevant targets by the number of bounds that they reach.
    bounds_reached = np.searchsorted(bounds, similarities, side="right")
    ignored = np.r_[relevant, self_index] if self_index >= 0 else relevant
    counts = np.bincount(np.delete(bounds_reached, ignored), minlength=len(bounds) + 1)
    # the irrelevant targets before each relevant one, beginning with the most similar relevant one
    irrelevant_before = np.cumsum(counts[::-1])[:-1]
    return np.arange(1, len(bounds) + 1) + irrelevant_before


@dataclass(frozen=True)
class MinedPairs:
    """Most similar pairs of rows, in descending order of similarity."""

    indices: np.ndarray
    """(p, 2) indices of the rows of a pair, the smaller first"""
    similarity: np.ndarray
    """(p,)"""
    counts_above: np.ndarray
    """number of pairs at or above each threshold, among all pairs of rows"""


def most_similar(
    kind: Similarity, x: np.ndarray, neighbours: int, pairs: int, thresholds: Sequence[float] = ()
) -> MinedPairs:
    """Find the most similar pairs of rows of x (n, d), each of a row and one of its nearest rows.

    Args:
        kind: similarity measure.
        x: (n, d).
        neighbours: number of nearest rows with which a row is paired.
        pairs: largest number of pairs to return.
        thresholds: similarities for the counts in `MinedPairs.counts_above`.
    """
    keys, values = np.empty(0, np.int64), np.empty(0, np.float64)
    counts_above = np.zeros(len(thresholds), np.int64)
    k = min(neighbours, len(x) - 1)
    for start, block in similarity_blocks(kind, x, x):
        np.fill_diagonal(block[:, start:], -np.inf)  # a row is not its own neighbour
        counts_above += np.array(
            [np.count_nonzero(np.triu(block >= bound, start + 1)) for bound in thresholds], np.int64
        )
        nearest = np.argpartition(-block, k - 1, axis=1)[:, :k] if k else np.empty((len(block), 0), np.int64)
        rows = np.repeat(start + np.arange(len(block)), nearest.shape[1])
        smaller, larger = np.minimum(rows, nearest.ravel()), np.maximum(rows, nearest.ravel())
        similarity = np.take_along_axis(block, nearest, axis=1).ravel()
        keys, values = _best(np.r_[keys, smaller * len(x) + larger], np.r_[values, similarity], pairs)
    return MinedPairs(np.stack(np.divmod(keys, max(len(x), 1)), axis=1), values, counts_above)


def _best(keys: np.ndarray, values: np.ndarray, pairs: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the `pairs` largest values, descending, with their keys; each key once, ties by key."""
    order = np.lexsort((-values, keys))
    first_of_key = order[np.r_[True, np.diff(keys[order]) > 0]] if len(order) else order
    best = first_of_key[np.lexsort((keys[first_of_key], -values[first_of_key]))][:pairs]
    return keys[best], values[best]
