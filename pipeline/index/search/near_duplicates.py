"""Use an index to find pairs of rows that are nearly equal, and group them."""

from typing import NamedTuple

import numpy as np

from pipeline.index.files.parts import Parts
from pipeline.index.measure.truth import NO_NEIGHBOUR
from pipeline.index.structure import is_exact

# Number of nearest rows to search for: at first, its factor as long as all of them are near-duplicates, and
# its maximum.
_FIRST_NEIGHBOURS, _MORE, _MOST_NEIGHBOURS = 16, 8, 1_024
# Scores of compressed vectors differ from cosines; pairs are compared exactly afterwards.
_CODES_MARGIN, _ROUNDING = 0.1, 1e-4
_COMPARED = 16_384  # pairs that are compared at once: 50 MB of vectors at 384 dimensions


class Pairs(NamedTuple):
    """Pairs of rows, by their addresses."""

    left: np.ndarray
    """(n,) int64, the lower address of each pair"""
    right: np.ndarray
    """(n,) int64"""

    @classmethod
    def unique(cls, one: np.ndarray, other: np.ndarray) -> "Pairs":
        """Sort the two addresses within each pair, then the pairs, and drop repeated pairs."""
        ordered = np.unique(np.stack([np.minimum(one, other), np.maximum(one, other)], axis=1), axis=0)
        return cls(ordered[:, 0], ordered[:, 1])


class DuplicateGroups(NamedTuple):
    """Groups of rows that are connected by pairs, in the order of the group's first row, then of the row."""

    rows: np.ndarray
    """(m,) int64, numbers of the rows"""
    firsts: np.ndarray
    """(m,) int64, number of the first row of each row's group"""


def candidate_pairs(parts: Parts, addresses: np.ndarray, vectors: np.ndarray, threshold: float) -> Pairs:
    """Search for pairs whose score is near the threshold or above it, at the effort that is set in the index.

    Args:
        addresses: (n,) int64, rows of the index.
        vectors: (n, d), their raw vectors.
        threshold: least cosine of near-duplicates.
    """
    least = threshold - (_ROUNDING if is_exact(parts.base) else _CODES_MARGIN)
    pending, k = np.arange(len(addresses)), _FIRST_NEIGHBOURS
    found: list[tuple[np.ndarray, np.ndarray]] = [(np.zeros(0, np.int64),) * 2]
    while len(pending):
        scores, nearest = parts.search(vectors[pending], k)
        is_complete = (scores[:, -1] < least) | (k >= min(parts.ntotal, _MOST_NEIGHBOURS))
        own = addresses[pending][:, None]
        is_pair = (scores >= least) & (nearest != NO_NEIGHBOUR) & (nearest != own) & is_complete[:, None]
        found.append((np.broadcast_to(own, nearest.shape)[is_pair], nearest[is_pair]))
        pending, k = pending[~is_complete], min(_MORE * k, _MOST_NEIGHBOURS)
    one, other = map(np.concatenate, zip(*found, strict=True))
    return Pairs.unique(one, other)


def cosines_of(vectors: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the cosines (n,) float32 of pairs of rows.

    Args:
        vectors: (m, d) float32, normalized; may be a memory-mapped file.
        left: (n,) numbers of rows.
        right: (n,) numbers of rows.
    """
    cosines = np.empty(len(left), dtype=np.float32)
    for start in range(0, len(left), _COMPARED):
        rows = slice(start, start + _COMPARED)
        cosines[rows] = np.einsum("nd,nd->n", vectors[left[rows]], vectors[right[rows]])
    return cosines


def group_pairs(left: np.ndarray, right: np.ndarray, count: int) -> DuplicateGroups:
    """Group rows into the connected components of their pairs; rows without a pair are in no group.

    Args:
        left: (n,) numbers of rows, from 0.
        right: (n,) numbers of rows.
        count: number of all rows.
    """
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    graph = coo_matrix((np.ones(len(left), dtype=bool), (left, right)), shape=(count, count))
    _, labels = connected_components(graph, directed=False)
    rows = np.union1d(left, right)
    _, first_positions, groups = np.unique(labels[rows], return_index=True, return_inverse=True)
    firsts = rows[first_positions][groups]
    order = np.lexsort((rows, firsts))
    return DuplicateGroups(rows[order], firsts[order])
