"""Exact nearest neighbours of sampled queries, found while the vectors pass by on their way into the index:
one matrix product more, no second scan.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from pipeline.index.library import faiss
from pipeline.post import Affine

NOBODY = -1  # address where there are fewer vectors than answers asked for
OUTSIDE = -2  # address of a query that is no row of the corpus
MARGIN = (
    28  # kept beyond the k-th: rows of equal score there, duplicate texts above all, are right answers too
)
_BLOCK_ROWS = 8_192  # x 1,000 queries in float32: 33 MB of scores at a time


Batches = Iterable[tuple[np.ndarray, np.ndarray]]  # (n,) int64 addresses, (n, d) float32 raw vectors


@dataclass(frozen=True, eq=False)
class Queries:
    """Rows of the corpus that are asked as queries: addresses (q,) int64, OUTSIDE for other texts, and raw
    vectors (q, d) float32, as the encoder made them.
    """

    addresses: np.ndarray
    vectors: np.ndarray

    def __len__(self) -> int:
        return len(self.addresses)

    def __getitem__(self, rows: slice | np.ndarray) -> "Queries":
        return Queries(self.addresses[rows], self.vectors[rows])


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The best answers of each query, best first: addresses (q, k) int64, -1 where there are no more, and
    scores (q, k) float32 (cosines).
    """

    addresses: np.ndarray
    scores: np.ndarray

    def __getitem__(self, rows: slice | np.ndarray) -> "Neighbours":
        return Neighbours(self.addresses[rows], self.scores[rows])


@dataclass(frozen=True, eq=False)
class ExactTopK:
    """A fold: the `keep` nearest of each query among the vectors of all batches, in the space of the index; a
    query's own address is no answer.
    """

    queries: Queries
    transform: Affine | None = None
    keep: int = 100 + MARGIN

    def of(self, batches: Batches) -> Neighbours:
        """The nearest among `batches`; memory is that of one block of scores."""
        wanted, best = indexed(self.queries.vectors, self.transform), self.none()
        for addresses, vectors in batches:
            for start in range(0, len(addresses), _BLOCK_ROWS):
                rows = slice(start, start + _BLOCK_ROWS)
                best = self.merge(
                    best, self._block(wanted, addresses[rows], indexed(vectors[rows], self.transform))
                )
        return best

    def merge(self, left: Neighbours, right: Neighbours) -> Neighbours:
        """The nearest of both; of equal scores the lower address first, so the order of merging leaves no
        trace.
        """
        addresses = np.concatenate([left.addresses, right.addresses], axis=1)
        scores = np.concatenate([left.scores, right.scores], axis=1)
        order = np.lexsort((addresses, -scores), axis=1)[:, : self.keep]
        return Neighbours(
            np.take_along_axis(addresses, order, axis=1), np.take_along_axis(scores, order, axis=1)
        )

    def none(self) -> Neighbours:
        shape = (len(self.queries), self.keep)
        return Neighbours(np.full(shape, NOBODY, dtype=np.int64), np.full(shape, -np.inf, dtype=np.float32))

    def _block(self, wanted: np.ndarray, addresses: np.ndarray, vectors: np.ndarray) -> Neighbours:
        scores, places = faiss.knn(
            wanted, vectors, min(self.keep + 1, len(vectors)), metric=faiss.METRIC_INNER_PRODUCT
        )
        found = np.where(places >= 0, addresses[places], NOBODY)
        none = (found == NOBODY) | (found == self.queries.addresses[:, None])
        return Neighbours(np.where(none, NOBODY, found), np.where(none, np.float32(-np.inf), scores))


@dataclass(frozen=True, eq=False)
class Known:
    """The beginning of each query's exact ranking of some rows. others (q,): how many rows there are to rank,
    its own not counted.
    """

    best: Neighbours
    others: np.ndarray

    def lengths(self) -> np.ndarray:
        """(q,): ranks that are known."""
        return np.asarray((self.best.addresses != NOBODY).sum(axis=1))

    def reaches(self, rank: int) -> np.ndarray:
        """Mask (q,) of the queries whose ranking is known down to `rank`, or to its end."""
        return np.asarray(self.lengths() >= np.minimum(rank, self.others))

    def end(self) -> tuple[np.ndarray, np.ndarray]:
        """Score and address (q, 1) of the last known rank: nothing that is unknown comes before it.

        (-inf, any) where all is known.
        """
        lengths = self.lengths()
        last = np.maximum(lengths - 1, 0)[:, None]
        scores, addresses = (
            np.take_along_axis(self.best.scores, last, axis=1),
            np.take_along_axis(self.best.addresses, last, axis=1),
        )
        scores = np.where((lengths == 0)[:, None], np.float32(np.inf), scores)
        return np.where((lengths >= self.others)[:, None], np.float32(-np.inf), scores), addresses


def carry(fold: ExactTopK, before: Known, stays: np.ndarray, added: Known) -> Neighbours:
    """The exact ranking of the rows of `before` that stay together with those of `added`, as far as the two
    tell it.

    stays (q, k): mask of before's answers; a row that is gone leaves a gap that nobody fills, so rankings
    grow shorter until a scan of all rows renews them. Of the merged ranks those are kept that come no later
    than the end of either: whatever is unknown comes after them.
    """
    left = Neighbours(
        np.where(stays, before.best.addresses, NOBODY),
        np.where(stays, before.best.scores, np.float32(-np.inf)),
    )
    merged = fold.merge(left, added.best)
    known = merged.addresses != NOBODY
    for scores, addresses in (before.end(), added.end()):
        known &= (merged.scores > scores) | ((merged.scores == scores) & (merged.addresses <= addresses))
    return Neighbours(
        np.where(known, merged.addresses, NOBODY), np.where(known, merged.scores, np.float32(-np.inf))
    )


def indexed(vectors: np.ndarray, transform: Affine | None) -> np.ndarray:
    """Raw vectors (n, d) as the index compares them: transformed, then of length one (zero stays zero); (n,
    k) float32, C order, always a copy.
    """
    moved = (
        np.array(vectors, dtype=np.float32)
        if transform is None
        else vectors.astype(np.float32, copy=False) @ transform.matrix.T + transform.bias
    )
    moved = np.ascontiguousarray(moved, dtype=np.float32)
    faiss.normalize_L2(moved)
    return moved
