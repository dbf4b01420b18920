"""Exact nearest neighbours of sampled queries, found while vectors are added to the index.

That costs one matrix product, without another scan.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from pipeline.index.library import faiss
from pipeline.post import Affine

NO_NEIGHBOUR = -1  # address where there are fewer rows than answers
OUTSIDE = -2  # address of a query that is not a row of the corpus
MARGIN = (
    28  # kept beyond the k-th: rows with the same score, duplicate texts above all, are right answers too
)
_BLOCK_ROWS = 8_192  # x 1,000 queries in float32: 33 MB of scores at a time


Batches = Iterable[tuple[np.ndarray, np.ndarray]]  # (n,) int64 addresses, (n, d) float32 raw vectors


@dataclass(frozen=True, eq=False)
class Queries:
    """Rows of the corpus that are used as queries.

    Attributes:
        addresses: (q,) int64, OUTSIDE for other texts.
        vectors: (q, d) float32, raw vectors of the encoder.
    """

    addresses: np.ndarray
    vectors: np.ndarray

    def __len__(self) -> int:
        return len(self.addresses)

    def __getitem__(self, rows: slice | np.ndarray) -> "Queries":
        return Queries(self.addresses[rows], self.vectors[rows])


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The best answers of each query, best first.

    Attributes:
        addresses: (q, k) int64, NO_NEIGHBOUR after the last answer.
        scores: (q, k) float32, cosines, -inf after the last answer.
    """

    addresses: np.ndarray
    scores: np.ndarray

    def __getitem__(self, rows: slice | np.ndarray) -> "Neighbours":
        return Neighbours(self.addresses[rows], self.scores[rows])

    def where(self, mask: np.ndarray) -> "Neighbours":
        """Keep the answers in `mask` (q, k) and replace the others by NO_NEIGHBOUR with score -inf."""
        return Neighbours(
            np.where(mask, self.addresses, NO_NEIGHBOUR), np.where(mask, self.scores, np.float32(-np.inf))
        )


@dataclass(frozen=True, eq=False)
class ExactTopK:
    """The `keep` nearest rows of each query, in the space of the index, without the query's own row.

    Results of batches are merged.
    """

    queries: Queries
    transform: Affine | None = None
    keep: int = 100 + MARGIN

    def of(self, batches: Batches) -> Neighbours:
        """Search all batches. Memory is that of one block of scores."""
        wanted, best = indexed(self.queries.vectors, self.transform), self.none()
        for addresses, vectors in batches:
            for start in range(0, len(addresses), _BLOCK_ROWS):
                rows = slice(start, start + _BLOCK_ROWS)
                best = self.merge(
                    best, self._search(wanted, addresses[rows], indexed(vectors[rows], self.transform))
                )
        return best

    def merge(self, left: Neighbours, right: Neighbours) -> Neighbours:
        """Return the nearest of both, whatever their order; of equal scores the lower address first."""
        addresses = np.concatenate([left.addresses, right.addresses], axis=1)
        scores = np.concatenate([left.scores, right.scores], axis=1)
        order = np.lexsort((addresses, -scores), axis=1)[:, : self.keep]
        addresses = np.take_along_axis(addresses, order, axis=1)
        return Neighbours(addresses, np.take_along_axis(scores, order, axis=1))

    def none(self) -> Neighbours:
        """Return a result without answers."""
        shape = (len(self.queries), self.keep)
        return Neighbours(
            np.full(shape, NO_NEIGHBOUR, dtype=np.int64), np.full(shape, -np.inf, dtype=np.float32)
        )

    def _search(self, wanted: np.ndarray, addresses: np.ndarray, vectors: np.ndarray) -> Neighbours:
        scores, rows = faiss.knn(
            wanted, vectors, min(self.keep + 1, len(vectors)), metric=faiss.METRIC_INNER_PRODUCT
        )
        found = np.where(rows >= 0, addresses[rows], NO_NEIGHBOUR)
        others = (found != NO_NEIGHBOUR) & (found != self.queries.addresses[:, None])
        return Neighbours(found, scores).where(others)


@dataclass(frozen=True, eq=False)
class Known:
    """The beginning of each query's exact ranking of some rows.

    Attributes:
        best: the ranking, as far as it is known.
        others: (q,) number of rows to rank, without the query's own.
    """

    best: Neighbours
    others: np.ndarray

    def lengths(self) -> np.ndarray:
        """Return the number of known ranks, (q,)."""
        return np.asarray((self.best.addresses != NO_NEIGHBOUR).sum(axis=1))

    def reaches(self, rank: int) -> np.ndarray:
        """Return a mask (q,) of the queries whose ranking is known down to `rank`, or to its end."""
        return np.asarray(self.lengths() >= np.minimum(rank, self.others))

    def end(self) -> tuple[np.ndarray, np.ndarray]:
        """Return score and address (q, 1) of the last known rank, before which nothing is unknown.

        The score is -inf if the whole ranking is known, and inf if none of it is.
        """
        lengths = self.lengths()[:, None]
        last = np.maximum(lengths - 1, 0)
        scores = np.take_along_axis(self.best.scores, last, axis=1)
        scores = np.where(lengths == 0, np.float32(np.inf), scores)
        scores = np.where(lengths >= self.others[:, None], np.float32(-np.inf), scores)
        return scores, np.take_along_axis(self.best.addresses, last, axis=1)


def carry(fold: ExactTopK, before: Known, stays: np.ndarray, added: Known) -> Neighbours:
    """Return the exact ranking of the rows of `before` that stay and those of `added`, as far as it is known.

    Removed rows are not replaced, so rankings become shorter until a scan of all rows renews them. A merged
    rank is known if it comes no later than the end of either ranking: every unknown row comes after that.

    Args:
        stays: (q, k) mask of the answers in `before` that stay.
    """
    merged = fold.merge(before.best.where(stays), added.best)
    known = merged.addresses != NO_NEIGHBOUR
    for scores, addresses in (before.end(), added.end()):
        known &= (merged.scores > scores) | ((merged.scores == scores) & (merged.addresses <= addresses))
    return merged.where(known)


def indexed(vectors: np.ndarray, transform: Affine | None) -> np.ndarray:
    """Return raw vectors (n, d) as the index compares them: transformed and of length one.

    Zero stays zero. The result (n, k) is a copy, float32 in C order.
    """
    moved = np.array(vectors, dtype=np.float32, order="C")
    if transform is not None:
        moved = np.ascontiguousarray(moved @ transform.matrix.T + transform.bias, dtype=np.float32)
    faiss.normalize_L2(moved)
    return moved
