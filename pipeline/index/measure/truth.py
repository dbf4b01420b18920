"""Find the exact nearest neighbours of sampled queries, against which the recall of an index is measured.

They are found while vectors are added to the index, which saves a scan, and are updated from night to night.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from pipeline.index.gpu import flat_index
from pipeline.index.library import faiss
from pipeline.transforms.transform import Affine

NO_NEIGHBOUR = -1  # fills up the row of a query that has fewer neighbours than other queries
NOT_A_ROW = -2  # address of a query that is not a row of the corpus
# Neighbours that are found beyond rank 100, because rows with the same score as rank 100, such as duplicate
# texts, are right answers too.
_MARGIN = 28
_BLOCK_ROWS = 8_192  # with 1,000 queries in float32: 33 MB of scores at a time


Batches = Iterable[tuple[np.ndarray, np.ndarray]]  # (n,) int64 addresses, (n, d) float32 raw vectors


@dataclass(frozen=True, eq=False)
class Queries:
    """Vectors that the index is searched with: sampled rows of the corpus, and texts of users."""

    addresses: np.ndarray
    """(q,) int64, address of each query's own row; NOT_A_ROW for texts that are not in the corpus"""
    vectors: np.ndarray
    """(q, d) float32, raw vectors of the encoder"""

    @property
    def of_users(self) -> np.ndarray:
        """Mask (q,) of the queries that are texts of users, not rows of the corpus."""
        return np.asarray(self.addresses == NOT_A_ROW)

    def __len__(self) -> int:
        return len(self.addresses)

    def __getitem__(self, rows: slice | np.ndarray) -> "Queries":
        return Queries(self.addresses[rows], self.vectors[rows])


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The nearest rows of each query, nearest first."""

    addresses: np.ndarray
    """(q, k) int64, NO_NEIGHBOUR after the last answer"""
    scores: np.ndarray
    """(q, k) float32, cosines, -inf after the last answer"""

    def __getitem__(self, rows: slice | np.ndarray) -> "Neighbours":
        return Neighbours(self.addresses[rows], self.scores[rows])

    def masked(self, mask: np.ndarray) -> "Neighbours":
        """Keep the answers in `mask` (q, k) and replace the others by NO_NEIGHBOUR with score -inf."""
        return Neighbours(
            np.where(mask, self.addresses, NO_NEIGHBOUR), np.where(mask, self.scores, np.float32(-np.inf))
        )

    def compacted(self) -> "Neighbours":
        """Move the answers before the places without one; their order stays."""
        order = np.argsort(self.addresses == NO_NEIGHBOUR, axis=1, kind="stable")
        return Neighbours(
            *(np.take_along_axis(each, order, axis=1) for each in (self.addresses, self.scores))
        )


@dataclass(frozen=True, eq=False)
class ExactTopK:
    """Exact search for the nearest rows of each query, in the space of the index.

    The results of different batches can be merged.
    """

    queries: Queries
    transform: Affine | None = None
    """map that the index applies to vectors before normalization"""
    keep: int = 100 + _MARGIN
    """number of neighbours, without the query's own row"""
    on_gpu: bool = False
    """compare on GPUs. Rows with almost equal scores may be ranked in another order"""

    def search(self, batches: Batches) -> Neighbours:
        """Find the nearest rows of all batches, with one block of scores in memory."""
        best = self.empty()
        for addresses, vectors in batches:
            for start in range(0, len(addresses), _BLOCK_ROWS):
                rows = slice(start, start + _BLOCK_ROWS)
                block = to_index_space(vectors[rows], self.transform)
                best = self.merge(best, self._search_block(addresses[rows], block))
        return best

    def merge(self, left: Neighbours, right: Neighbours) -> Neighbours:
        """Return the nearest rows of two results; of equal scores, the lower address comes first."""
        addresses = np.concatenate([left.addresses, right.addresses], axis=1)
        scores = np.concatenate([left.scores, right.scores], axis=1)
        order = np.lexsort((addresses, -scores), axis=1)[:, : self.keep]
        addresses = np.take_along_axis(addresses, order, axis=1)
        return Neighbours(addresses, np.take_along_axis(scores, order, axis=1))

    def empty(self) -> Neighbours:
        """Return a result without answers."""
        shape = (len(self.queries), self.keep)
        return Neighbours(
            np.full(shape, NO_NEIGHBOUR, dtype=np.int64), np.full(shape, -np.inf, dtype=np.float32)
        )

    @cached_property
    def _queries(self) -> np.ndarray:
        """The queries in the space of the index, (q, k)."""
        return to_index_space(self.queries.vectors, self.transform)

    @cached_property
    def _flat(self) -> Any:
        """The index that holds one block of rows; on a GPU it is slow to make."""
        return flat_index(self._queries.shape[1], on_gpu=self.on_gpu)

    def _search_block(self, addresses: np.ndarray, vectors: np.ndarray) -> Neighbours:
        self._flat.add(vectors)
        scores, rows = self._flat.search(self._queries, min(self.keep + 1, len(vectors)))
        self._flat.reset()
        nearest = np.where(rows >= 0, addresses[rows], NO_NEIGHBOUR)
        is_other_row = (nearest != NO_NEIGHBOUR) & (nearest != self.queries.addresses[:, None])
        return Neighbours(nearest, scores).masked(is_other_row)


@dataclass(frozen=True, eq=False)
class KnownRanking:
    """The exact ranking of some rows for each query, down to the last rank that is known."""

    best: Neighbours
    """the known ranks"""
    complete_lengths: np.ndarray
    """(q,) number of ranks of the complete ranking: all rows but the query's own"""

    def lengths(self) -> np.ndarray:
        """Return the number of known ranks, (q,)."""
        return np.asarray((self.best.addresses != NO_NEIGHBOUR).sum(axis=1))

    def reaches(self, rank: int) -> np.ndarray:
        """Return a mask (q,) of the queries whose ranking is known down to `rank`, or completely."""
        return np.asarray(self.lengths() >= np.minimum(rank, self.complete_lengths))

    def last_known(self) -> tuple[np.ndarray, np.ndarray]:
        """Return score and address (q, 1) of the last known rank; every unknown row comes after it.

        The score is -inf if the complete ranking is known, and inf if no rank is.
        """
        lengths = self.lengths()[:, None]
        last = np.maximum(lengths - 1, 0)
        scores = np.take_along_axis(self.best.scores, last, axis=1)
        scores = np.where(lengths == 0, np.float32(np.inf), scores)
        scores = np.where(lengths >= self.complete_lengths[:, None], np.float32(-np.inf), scores)
        return scores, np.take_along_axis(self.best.addresses, last, axis=1)


def carry_over(
    top_k: ExactTopK, previous: KnownRanking, remains: np.ndarray, added: KnownRanking
) -> Neighbours:
    """Update exact rankings after rows were removed and added, without a scan of all rows.

    A merged rank is known if it is not after the last known rank of either ranking, because every unknown row
    is after one of these. Nothing replaces removed rows, so rankings become shorter until a scan renews them.

    Args:
        previous: ranking before the change.
        remains: (q, k) mask of the neighbours in `previous` that were not removed.
        added: ranking of the added rows.

    Returns:
        The known ranks.
    """
    merged = top_k.merge(previous.best.masked(remains), added.best)
    is_known = merged.addresses != NO_NEIGHBOUR
    for scores, addresses in (previous.last_known(), added.last_known()):
        is_known &= (merged.scores > scores) | ((merged.scores == scores) & (merged.addresses <= addresses))
    return merged.masked(is_known)


def to_index_space(vectors: np.ndarray, transform: Affine | None) -> np.ndarray:
    """Return raw vectors (n, d) as the index compares them: transformed and L2-normalized.

    Zero stays zero. The result (n, k) is a copy, float32 in C order.
    """
    result = np.array(vectors, dtype=np.float32, order="C")
    if transform is not None:
        result = np.ascontiguousarray(result @ transform.matrix.T + transform.bias, dtype=np.float32)
    faiss.normalize_L2(result)
    return result
