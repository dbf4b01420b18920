"""The interface of an index in parts, on this machine or on workers, for searching and measuring."""

import abc
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline.index.library import faiss_threads
from pipeline.index.measure.truth import NO_NEIGHBOUR
from pipeline.index.structure import nlist_of, unwrap


class SearchedParts(abc.ABC):
    """The parts of an index, searched as one, without their dead rows."""

    indexes: tuple[Any, ...]
    """faiss indexes that hold the search effort; all have the same training, metric and dimension"""

    @property
    def base(self) -> Any:
        """The first of the indexes."""
        return self.indexes[0]

    @property
    def d(self) -> int:
        """Dimension of raw vectors."""
        return int(self.base.d)

    @property
    @abc.abstractmethod
    def ntotal(self) -> int:
        """Number of live rows."""

    @abc.abstractmethod
    def search(self, vectors: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Search for the k nearest live rows, with the arguments of a faiss index. See `Parts.search`."""

    @abc.abstractmethod
    def search_lists(self, vectors: np.ndarray, k: int, nprobe: int) -> tuple[np.ndarray, np.ndarray]:
        """Search like `search`, but in the `nprobe` nearest lists of each query."""

    def search_until_k(self, vectors: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Search like `search`, but visit more lists for queries that have fewer than k answers.

        The number of lists is doubled until a query has k answers or has visited every list. This is how
        searchers search.
        """
        scores, addresses = self.search(vectors, k)
        if not (_count_answers(addresses) < k).any():
            return scores, addresses
        expected, nlist = min(k, self.ntotal), nlist_of(self.base)
        nprobe = unwrap(self.base).nprobe if nlist else 0
        while nprobe < nlist:
            incomplete = np.flatnonzero(_count_answers(addresses) < expected)
            if not len(incomplete):
                break
            nprobe = min(2 * nprobe, nlist)
            scores[incomplete], addresses[incomplete] = self.search_lists(vectors[incomplete], k, nprobe)
        return scores, addresses

    @abc.abstractmethod
    def holds(self, addresses: np.ndarray) -> np.ndarray:
        """Return a mask (n,) of `addresses` (n,): True for those in the index, dead rows included."""

    @abc.abstractmethod
    def duplicates(self) -> int:
        """Return the number of addresses that repeat another one."""

    @abc.abstractmethod
    def list_sizes(self) -> np.ndarray:
        """Return the number of rows (nlist,) of each list, all parts together."""

    @abc.abstractmethod
    def fingerprints(self) -> set[str]:
        """Return the fingerprints of the parts: one, if they have the same training."""

    @abc.abstractmethod
    def query_ms(self, vectors: np.ndarray) -> np.ndarray:
        """Time each of the queries (n, d) on its own, on one thread, in milliseconds (n,)."""

    def clock(self) -> float:
        """Return a time in seconds: searching advances it by the time that one thread needs."""
        return time.perf_counter()

    def imbalance(self) -> float:
        """Return the imbalance of the list sizes, all parts together (Jegou et al. 2011, eq. 5).

        It is 1 if all lists have the same size, or if there are no lists.
        """
        sizes = self.list_sizes()
        return float(len(sizes) * (sizes**2).sum() / sizes.sum() ** 2) if sizes.any() else 1.0


def _count_answers(addresses: np.ndarray) -> np.ndarray:
    """Count the answers of each query (q,), given their addresses (q, k)."""
    return np.asarray((addresses != NO_NEIGHBOUR).sum(axis=1))


def best_of(by_part: Sequence[tuple[np.ndarray, np.ndarray]], k: int) -> tuple[np.ndarray, np.ndarray]:
    """Merge the answers of several parts, (scores, addresses) each; of equal scores, the lower address first.

    Returns:
        Scores and addresses (q, k) of the best answers, or fewer columns if there are fewer.
    """
    scores, addresses = (np.concatenate(arrays, axis=1) for arrays in zip(*by_part, strict=True))
    order = np.lexsort((addresses, -scores), axis=1)[:, :k]
    return np.take_along_axis(scores, order, axis=1), np.take_along_axis(addresses, order, axis=1)


def query_ms(index: Any, vectors: np.ndarray) -> np.ndarray:
    """Time searches for ten answers, one query (n, d) after the other on one thread, in milliseconds (n,).

    Args:
        index: a faiss index, or an object with the same `search`.
    """
    elapsed_ms = np.zeros(len(vectors))
    with faiss_threads(1):
        index.search(vectors[:1], 10)
        for row in range(len(vectors)):
            start = time.perf_counter()
            index.search(vectors[row : row + 1], 10)
            elapsed_ms[row] = 1e3 * (time.perf_counter() - start)
    return elapsed_ms


def indexes_of(index: Any) -> tuple[Any, ...]:
    """Return the faiss indexes of parts; a faiss index by itself is returned as the only one."""
    return index.indexes if isinstance(index, SearchedParts) else (index,)
