"""Train the centroids of many inverted lists, and find the nearest centroid of each of many rows.

An index with very many lists has a graph of their centroids, in which a search finds the lists nearest to
a query. For thousands of rows at a time it is faster to divide the centroids into groups and to compare rows
with centroids by matrix products, group by group.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from pipeline.index.gpu import flat_index
from pipeline.index.library import faiss, map_in_threads

BLOCK_ROWS = 32_768  # rows whose nearest centroids are found together: smaller products are slower
GROUPS_PER_ROW = 8  # a row is compared with all centroids of this many nearest groups
_GROUP_ROUNDS, _GROUP_SAMPLE = 4, 64  # k-means that divides centroids: rounds, and centroids for each group
# Rounds of k-means over all centroids, after those within groups of rows. With six, recall@10 is within
# 0.005 of k-means on one level (table of lists in tests/benchmarks/README.md).
REFINING_ROUNDS = 6


@dataclass(frozen=True, eq=False)
class CentroidGroups:
    """The k centroids of an index, in about sqrt(k) groups of similar centroids."""

    means: Any
    """faiss index of the mean vectors of the g groups"""
    members: tuple[np.ndarray, ...]
    """for each group, the numbers of its centroids"""
    centroids: tuple[np.ndarray, ...]
    """for each group, (members, d) float32"""

    @classmethod
    def of(cls, centroids: np.ndarray) -> "CentroidGroups":
        """Divide centroids (k, d) float32 of length 1. On one thread, equal centroids give equal groups."""
        means = flat_index(centroids.shape[1], on_gpu=False)
        rounds = _Rounds(_GROUP_ROUNDS, 0, _GROUP_SAMPLE)
        means.add(_k_means(centroids, math.isqrt(len(centroids)), means, rounds))
        members = _positions_by_number(_nearest(means, centroids), means.ntotal)
        return cls(means, tuple(members), tuple(centroids[numbers] for numbers in members))

    def nearest(self, vectors: np.ndarray) -> np.ndarray:
        """Find the centroid with the largest inner product for each vector.

        For 1 in 100 text embeddings, the nearest of 126,491 centroids is missed, because it is in none of the
        nearest groups.

        Args:
            vectors: (n, d) float32 of length 1.

        Returns:
            (n,) int64, numbers of centroids.
        """
        blocks = [vectors[start : start + BLOCK_ROWS] for start in range(0, len(vectors), BLOCK_ROWS)]
        return np.concatenate(map_in_threads(self._nearest_of_block, blocks))

    def _nearest_of_block(self, vectors: np.ndarray) -> np.ndarray:
        visited = min(GROUPS_PER_ROW, len(self.members))
        _, groups = self.means.search(vectors, visited)
        best = np.full(len(vectors), -np.inf, dtype=np.float32)
        nearest = np.zeros(len(vectors), dtype=np.int64)
        for group, pairs in enumerate(_positions_by_number(groups.ravel(), len(self.members))):
            if not len(pairs) or not len(self.members[group]):
                continue
            rows = pairs // visited
            scores, positions = faiss.knn(
                vectors[rows], self.centroids[group], 1, metric=faiss.METRIC_INNER_PRODUCT
            )
            is_better = scores[:, 0] > best[rows]
            best[rows[is_better]] = scores[is_better, 0]
            nearest[rows[is_better]] = self.members[group][positions[is_better, 0]]
        return nearest


@dataclass(frozen=True, eq=False)
class ComparedCentroids:
    """Centroids that are all compared with every vector, on GPUs."""

    flat: Any
    """faiss index of the centroids"""

    @classmethod
    def of(cls, centroids: np.ndarray) -> "ComparedCentroids":
        """Copy centroids (k, d) float32 to the GPUs."""
        flat = flat_index(centroids.shape[1], on_gpu=True)
        flat.add(centroids)
        return cls(flat)

    def nearest(self, vectors: np.ndarray) -> np.ndarray:
        """Find the centroid with the largest inner product for each vector; see `CentroidGroups.nearest`."""
        return _nearest(self.flat, vectors)


class _Rounds(NamedTuple):
    """Settings of k-means."""

    number: int
    """number of rounds"""
    seed: int
    sample: int = 1 << 30
    """largest number of vectors for each centroid"""


def train_centroids(
    vectors: np.ndarray, count: int, rounds: int, seed: int, *, on_gpu: bool = False
) -> np.ndarray:
    """Train centroids by spherical k-means in two levels, then refine all of them together.

    Spherical k-means (Dhillon & Modha 2001) compares inner products, as a search does. The vectors are
    clustered into sqrt(count) groups, and each group into centroids in proportion to its vectors. A round
    compares a vector with 2 sqrt(count) centroids on both levels together, instead of with `count`. After the
    refining rounds, the same nprobe finds about as many neighbours as with centroids of one level
    (tests/benchmarks/README.md).

    Args:
        vectors: (n, d) float32 of length 1, n >= count.
        count: number of centroids.
        rounds: rounds of k-means on each level.
        on_gpu: run both levels on GPUs. The refining rounds compare rows with groups of centroids on the CPU:
            for 126,491 centroids, this takes a fortieth of the operations of comparing rows with all of them.

    Returns:
        (count, d) float32 of length 1.
    """
    group_count, settings = math.isqrt(count), _Rounds(rounds, seed)
    means = flat_index(vectors.shape[1], on_gpu=on_gpu)
    means.add(_k_means(vectors, group_count, means, settings))
    groups = _positions_by_number(_nearest(means, vectors), group_count)
    # Cumulative proportions are rounded, not each group's own, so that the counts add up to `count`.
    ends = np.cumsum([len(rows) for rows in groups]) * count // len(vectors)
    counts = np.diff(ends, prepend=0)

    def train_group(group: int) -> np.ndarray:
        """Cluster the vectors of a group. Threads must not share an index on a GPU."""
        flat = means if on_gpu else flat_index(vectors.shape[1], on_gpu=False)
        return _k_means(vectors[groups[group]], int(counts[group]), flat, settings)

    not_empty = [group for group in range(group_count) if counts[group]]
    centroids = np.concatenate(
        [train_group(group) for group in not_empty] if on_gpu else map_in_threads(train_group, not_empty)
    )
    for _ in range(REFINING_ROUNDS):
        centroids = _refine(vectors, centroids)
    return centroids


def _refine(vectors: np.ndarray, centroids: np.ndarray) -> np.ndarray:
    """Replace each centroid by the mean direction of its vectors; keep centroids without vectors."""
    sums = sum_by_group(vectors, CentroidGroups.of(centroids).nearest(vectors), len(centroids))
    lengths = np.linalg.norm(sums, axis=1, keepdims=True)
    return np.where(lengths > 0, sums / np.maximum(lengths, np.finfo(np.float32).tiny), centroids)


def sum_by_group(vectors: np.ndarray, groups: np.ndarray, count: int) -> np.ndarray:
    """Add up the vectors (n, d) float32 by group. Returns (count, d) float32.

    A product with a sparse matrix gives the same bits as `np.add.at`, in a seventh of the time for 20,000
    vectors.
    """
    from scipy.sparse import csr_matrix  # most commands do not need it

    members = (np.ones(len(vectors), dtype=np.float32), (groups, np.arange(len(vectors))))
    return np.asarray(csr_matrix(members, shape=(count, len(vectors))) @ vectors)


def _k_means(vectors: np.ndarray, count: int, flat: Any, rounds: _Rounds) -> np.ndarray:
    """Cluster vectors (n, d) by spherical k-means of faiss. Returns (count, d) float32.

    Args:
        flat: index in which every round compares the vectors with the centroids; it has no rows afterwards.
    """
    settings = faiss.ClusteringParameters()
    settings.niter, settings.seed, settings.spherical = rounds.number, rounds.seed, True
    # By default, faiss warns of fewer than 39 vectors per centroid, and uses at most 256 per centroid.
    settings.min_points_per_centroid, settings.max_points_per_centroid = 1, rounds.sample
    clustering = faiss.Clustering(vectors.shape[1], count, settings)
    clustering.train(np.ascontiguousarray(vectors), flat)
    flat.reset()
    return np.asarray(faiss.vector_to_array(clustering.centroids).reshape(count, -1))


def _nearest(means: Any, vectors: np.ndarray) -> np.ndarray:
    """Return the number (n,) of the nearest mean for each vector."""
    return np.asarray(means.search(vectors, 1)[1][:, 0])


def _positions_by_number(groups: np.ndarray, count: int) -> list[np.ndarray]:
    """Return for each number below `count` the ascending indices at which it occurs in `groups` (n,)."""
    order = np.argsort(groups, kind="stable")
    return np.split(order, np.cumsum(np.bincount(groups, minlength=count))[:-1])
