"""Add rows to an index; to one with a graph of centroids, in blocks whose lists are found together."""

from typing import Any

import numpy as np

from pipeline.index.centroids import BLOCK_ROWS, CentroidGroups
from pipeline.index.library import faiss
from pipeline.index.refine import add_to_refined, refined_of
from pipeline.index.structure import graph_of, is_append_only, ivf_of, transforms_of

# Lists for each row of a block from which on the graph is faster, since the centroids need not be divided.
_LISTS_PER_ROW = 32


class RowAdder:
    """Add rows to an index in order. `finish` adds the last ones.

    On one thread, equal rows in equal batches give equal bytes.
    """

    def __init__(self, index: Any) -> None:
        self._index = index
        self._ivf = None if is_append_only(index) or graph_of(index) is None else ivf_of(index)
        self._groups: CentroidGroups | None = None
        self._waiting: list[tuple[np.ndarray, np.ndarray]] = []

    def add(self, addresses: np.ndarray, vectors: np.ndarray) -> None:
        """Add raw vectors (n, d) float32 with their addresses (n,) int64, at once or with later ones."""
        if self._ivf is None:
            self._index.add_with_ids(vectors, addresses)
            return
        self._waiting.append((addresses, vectors))
        if sum(len(block) for block, _ in self._waiting) >= BLOCK_ROWS:
            self.finish()

    def finish(self) -> None:
        """Add the rows that wait."""
        if not self._waiting:
            return
        addresses, vectors = (np.concatenate(parts) for parts in zip(*self._waiting, strict=True))
        self._waiting = []
        assert self._ivf is not None
        if len(vectors) * _LISTS_PER_ROW < self._ivf.nlist:
            self._index.add_with_ids(vectors, addresses)
        else:
            self._add_together(addresses, vectors)

    def _add_together(self, addresses: np.ndarray, vectors: np.ndarray) -> None:
        index, ivf, graph = self._index, self._ivf, graph_of(self._index)
        assert ivf is not None
        assert graph is not None
        if self._groups is None:
            self._groups = CentroidGroups.of(graph.reconstruct_n(0, ivf.nlist))
        for transform in transforms_of(index):
            vectors = transform.apply(vectors)
        lists = self._groups.nearest(vectors)
        if refined_of(index) is not None:
            add_to_refined(index, addresses, vectors, lists)
        else:
            ivf.add_core(
                len(vectors), faiss.swig_ptr(vectors), faiss.swig_ptr(addresses), faiss.swig_ptr(lists)
            )
            index.ntotal = ivf.ntotal
