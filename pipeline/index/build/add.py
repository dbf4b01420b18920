"""Add rows to an index. On GPUs, or with a graph of centroids, the lists of a block are found together."""

from typing import Any

import numpy as np

from pipeline.index.build.centroids import BLOCK_ROWS, CentroidGroups, ComparedCentroids
from pipeline.index.library import faiss
from pipeline.index.refine import add_to_refined, index_refine_of
from pipeline.index.structure import graph_of, is_append_only, ivf_of, transforms_of

# With more lists than this for each row of a block, the graph is faster than dividing the centroids.
_LISTS_PER_ROW = 32


class RowAdder:
    """Add rows to an index in order. `finish` adds the last ones.

    On one thread, equal rows in equal batches give equal bytes.
    """

    def __init__(self, index: Any, *, on_gpu: bool = False) -> None:
        """Begin to add.

        Args:
            on_gpu: find the lists of rows on GPUs.
        """
        self._index, self._on_gpu = index, on_gpu
        in_blocks = (on_gpu or graph_of(index) is not None) and not is_append_only(index)
        self._ivf = ivf_of(index) if in_blocks else None
        self._centroids: CentroidGroups | ComparedCentroids | None = None
        self._waiting: list[tuple[np.ndarray, np.ndarray]] = []

    def add(self, addresses: np.ndarray, vectors: np.ndarray) -> None:
        """Add raw vectors (n, d) float32 with their addresses (n,) int64, now or together with later rows."""
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
        index, ivf = self._index, self._ivf
        assert ivf is not None
        if self._centroids is None:
            centroids = faiss.downcast_index(ivf.quantizer).reconstruct_n(0, ivf.nlist)
            on_gpu = self._on_gpu
            self._centroids = ComparedCentroids.of(centroids) if on_gpu else CentroidGroups.of(centroids)
        for transform in transforms_of(index):
            vectors = transform.apply(vectors)
        lists = self._centroids.nearest(vectors)
        if index_refine_of(index) is not None:
            add_to_refined(index, addresses, vectors, lists)
        else:
            ivf.add_core(
                len(vectors), faiss.swig_ptr(vectors), faiss.swig_ptr(addresses), faiss.swig_ptr(lists)
            )
            index.ntotal = ivf.ntotal
