"""Make faiss search parameters, through the transforms and the refinement of an index."""

from typing import Any

from pipeline.index.library import faiss
from pipeline.index.refine import id_map_of, index_refine_of
from pipeline.index.structure import graph_effort, graph_of, unwrap


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
    refined = index_refine_of(index)
    id_map = id_map_of(index)
    if id_map is not None and selector is not None:  # the lists of a refined index hold numbers of rows
        selector = faiss.IDSelectorTranslated(id_map.id_map, selector)
    graph = None if graph_of(index) is None else faiss.SearchParametersHNSW(efSearch=graph_effort(nprobe))
    parameters = faiss.SearchParametersIVF(nprobe=nprobe, sel=selector, quantizer_params=graph)
    if refined is not None:
        parameters = faiss.IndexRefineSearchParameters(
            k_factor=refined.k_factor, base_index_params=parameters
        )
    return _through_transforms(index, parameters)


def _through_transforms(index: Any, parameters: Any) -> Any:
    """Wrap search parameters for an index that has transforms before it."""
    if isinstance(index, faiss.IndexPreTransform):
        return faiss.SearchParametersPreTransform(index_params=parameters)
    return parameters
