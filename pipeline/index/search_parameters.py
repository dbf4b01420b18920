"""Make faiss search parameters through the transforms and the refinement of an index, and search its lists.

A search of a graph of centroids takes long if many lists are asked for. Then the queries are compared with
all centroids, and faiss gets the lists that they visit.
"""

from typing import Any

import numpy as np

from pipeline.index.library import faiss, map_in_threads
from pipeline.index.refine import id_map_of, index_refine_of
from pipeline.index.structure import graph_effort, graph_of, to_space_of, unwrap

Found = tuple[np.ndarray, np.ndarray]  # scores and addresses, or scores and lists, (q, k)

# Queries are compared with all centroids if they visit more than this fraction of the lists. From there on, a
# search of the graph took longer: from 1 / 280 of 65,536 lists of 128 dimensions, 1 / 150 of 20,000 of 384.
_COMPARED_FRACTION = 1 / 128
_BLOCK_LISTS = 1 << 21  # lists of several queries that are found at once: 12 bytes each, and as many again


def hnsw_parameters(index: Any, min_ef_search: int) -> Any:
    """Return faiss search parameters that raise efSearch to at least `min_ef_search`; None if not HNSW."""
    if not hasattr(ann := unwrap(index), "hnsw"):
        return None
    ef_search = max(ann.hnsw.efSearch, min_ef_search)
    return _through_transforms(index, faiss.SearchParametersHNSW(efSearch=ef_search))


def ivf_parameters(index: Any, nprobe: int, selector: Any = None) -> Any:
    """Return faiss search parameters with which an IVF index visits `nprobe` lists.

    Args:
        selector: faiss selector of addresses; other rows are left out.
    """
    refined, parameters = index_refine_of(index), _list_parameters(index, nprobe, selector)
    if refined is not None:
        parameters = faiss.IndexRefineSearchParameters(
            k_factor=refined.k_factor, base_index_params=parameters
        )
    return _through_transforms(index, parameters)


def search_lists(index: Any, vectors: np.ndarray, k: int, nprobe: int, selector: Any = None) -> Found:
    """Search the `nprobe` nearest lists of an IVF index for the k nearest rows.

    Args:
        vectors: (q, d), before the transforms.
        selector: faiss selector of addresses; other rows are left out.

    Returns:
        Scores and addresses (q, k), with address -1 after the last answer.
    """
    if graph_of(index) is None or not _compares_all(index, nprobe):
        found: Found = index.search(vectors, k, params=ivf_parameters(index, nprobe, selector))
        return found
    parameters = _list_parameters(index, nprobe, selector)

    def search_block(block: slice) -> Found:
        queries = to_space_of(index, vectors[block])
        return _search_nearest(index, queries, k, nprobe, parameters)

    scores, addresses = zip(*map_in_threads(search_block, query_blocks(len(vectors), nprobe)), strict=True)
    return np.concatenate(scores), np.concatenate(addresses)


def nearest_lists(index: Any, queries: np.ndarray, nprobe: int) -> Found:
    """Return the scores and numbers (q, nprobe) of the lists that `search_lists` visits for queries.

    Args:
        queries: (q, d), after the transforms.
    """
    graph = graph_of(index)
    if graph is None:
        found: Found = unwrap(index).quantizer.search(queries, nprobe)
    elif _compares_all(index, nprobe):
        found = faiss.downcast_index(graph.storage).search(queries, nprobe)
    else:
        parameters = faiss.SearchParametersHNSW(efSearch=graph_effort(nprobe))
        found = graph.search(queries, nprobe, params=parameters)
    return found


def query_blocks(queries: int, nprobe: int) -> list[slice]:
    """Split queries into blocks, one for each thread of faiss or more, whose nearest lists fit in memory."""
    rows = max(1, min(_BLOCK_LISTS // nprobe, -(-queries // faiss.omp_get_max_threads())))
    return [slice(start, start + rows) for start in range(0, max(1, queries), rows)]


def _compares_all(index: Any, nprobe: int) -> bool:
    """Return whether queries that visit `nprobe` lists of an index with a graph are compared with all."""
    return bool(nprobe > _COMPARED_FRACTION * unwrap(index).nlist)


def _search_nearest(index: Any, queries: np.ndarray, k: int, nprobe: int, parameters: Any) -> Found:
    """Search the nearest lists of queries (q, d), which have passed the transforms."""
    ivf, refined, id_map = unwrap(index), index_refine_of(index), id_map_of(index)
    list_scores, lists = nearest_lists(index, queries, nprobe)
    count = k if refined is None else int(k * refined.k_factor)
    scores = np.empty((len(queries), count), dtype=np.float32)
    numbers = np.empty((len(queries), count), dtype=np.int64)
    arrays = (faiss.swig_ptr(each) for each in (lists, list_scores, scores, numbers))
    # faiss's Python method takes no parameters
    ivf.search_preassigned_c(len(queries), faiss.swig_ptr(queries), count, *arrays, False, parameters)
    if refined is not None:
        scores, numbers = _rescore(refined, queries, numbers, k)
    if id_map is None:
        return scores, numbers
    stored = faiss.rev_swig_ptr(id_map.id_map.data(), id_map.ntotal)
    return scores, np.where(numbers >= 0, stored[numbers], -1)


def _rescore(refined: Any, queries: np.ndarray, numbers: np.ndarray, k: int) -> Found:
    """Score candidates, given by their numbers (q, n), by their second codes, and return the best k."""
    scores = np.full(numbers.shape, -np.inf, dtype=np.float32)
    distances = faiss.downcast_index(refined.refine_index).get_distance_computer()
    for row, query in enumerate(queries):
        distances.set_query(faiss.swig_ptr(query))
        candidates = numbers[row, numbers[row] >= 0].tolist()
        scores[row, : len(candidates)] = [distances(number) for number in candidates]
    best = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, best, axis=1), np.take_along_axis(numbers, best, axis=1)


def _list_parameters(index: Any, nprobe: int, selector: Any) -> Any:
    """Return faiss search parameters for the IVF index inside `index`."""
    id_map = id_map_of(index)
    if id_map is not None and selector is not None:  # the lists of a refined index hold numbers of rows
        selector = faiss.IDSelectorTranslated(id_map.id_map, selector)
    graph = None if graph_of(index) is None else faiss.SearchParametersHNSW(efSearch=graph_effort(nprobe))
    return faiss.SearchParametersIVF(nprobe=nprobe, sel=selector, quantizer_params=graph)


def _through_transforms(index: Any, parameters: Any) -> Any:
    """Wrap search parameters for an index that has transforms before it."""
    if isinstance(index, faiss.IndexPreTransform):
        return faiss.SearchParametersPreTransform(index_params=parameters)
    return parameters
