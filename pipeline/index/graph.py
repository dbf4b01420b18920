"""Train an IVF index that has a graph of its centroids."""

from typing import Any

import numpy as np

from pipeline.index.centroids import train_centroids
from pipeline.index.library import faiss
from pipeline.index.refine import id_map_of, index_refine_of
from pipeline.index.structure import graph_of, nlist_of, transforms_of, unwrap

KMEANS_ROUNDS = 10  # the default of faiss for coarse quantizers


def train_with_graph(index: Any, sample: np.ndarray, seed: int, *, on_gpu: bool) -> None:
    """Train the transforms, the centroids in the graph, and the codes of an index, with the results of faiss.

    faiss itself would compare every row with every centroid.

    Args:
        sample: (n, d) float32, raw vectors.
        on_gpu: see `train_centroids`.
    """
    graph = graph_of(index)
    assert graph is not None
    for transform in transforms_of(index):
        if not transform.is_trained:
            transform.train(sample)
        sample = transform.apply(sample)
    graph.add(train_centroids(sample, nlist_of(index), KMEANS_ROUNDS, seed, on_gpu=on_gpu))
    _train_codes(index, sample)


def _train_codes(index: Any, sample: np.ndarray) -> None:
    """Train the codes of an index, which keeps the centroids that it has.

    Args:
        sample: (n, d) float32, after all transforms.
    """
    ivf, refined, id_map = unwrap(index), index_refine_of(index), id_map_of(index)
    # A RaBitQ code follows from the vector and its centroid, without training. For a single row faiss does
    # not search the graph for the lists of all rows.
    ivf.train(sample[:1] if isinstance(ivf, faiss.IndexIVFRaBitQ) else sample)
    if refined is not None:
        faiss.downcast_index(refined.refine_index).train(sample)
    for outer in (refined, id_map, index):
        if outer is not None:
            outer.is_trained = True
