"""What a faiss index consists of: which kinds are served, the parts of one, and a fingerprint of all that
training fixed.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.errors import ConfigError, DataError
from pipeline.index.library import faiss

_SIGNATURE = re.compile(r"^Error in .*? at \S+:\d+: ")  # of the C++ function that refuses a string
_BLOCK_ROWS = 1 << 16
_IVF = ("IndexIVFFlat", "IndexIVFScalarQuantizer", "IndexIVFPQ")
# codes of 32 rows interleaved. In faiss 1.15.1 merging three such indexes corrupts memory, and a row added
# after a removal takes a freed place without
# clearing it: its code becomes the bitwise or of both, and its scores are wrong
_IVF_PACKED = ("IndexIVFPQFastScan",)
_CODES = ("IndexFlat", "IndexFlatIP", "IndexScalarQuantizer", "IndexPQ")
_GRAPHS = ("IndexHNSWFlat", "IndexHNSWSQ")  # neither merge nor remove


@dataclass(frozen=True)
class Inspected:
    """What a factory string makes.

    codewords: training rows that its product quantizer needs at least; code_bytes: of one row; trained_bytes:
        of rotation and codebooks.
    """

    nlist: int
    codewords: int
    code_bytes: int
    trained_bytes: int
    trains: bool
    shardable: bool
    mappable: bool
    removable: bool


def inspect_factory(factory: str, dim: int) -> Inspected:
    """What `factory` makes for vectors of `dim` components.

    ConfigError that names the string where faiss refuses it or its ids would not survive a merge.
    """
    index = make_ann(factory, dim)
    ann = faiss.downcast_index(index.index) if isinstance(index, faiss.IndexPreTransform) else index
    name = type(ann).__name__
    if name not in _IVF + _IVF_PACKED + _CODES + _GRAPHS:
        raise ConfigError(
            f"index.kind: {factory}",
            (
                "an IVF (Flat, SQ, PQ, PQfs), flat, SQ, PQ or HNSW index, at most behind a transform; ids "
                "are added by the build"
            ),
            name,
            (
                "leave out IDMap, Refine and the like, or choose one of auto, flat, ivf_flat, ivf_sq8, "
                "opq_ivf_pq, hnsw"
            ),
        )
    return Inspected(
        nlist=ann.nlist if name in _IVF + _IVF_PACKED else 0,
        codewords=1 << ann.pq.nbits if hasattr(ann, "pq") else 0,
        code_bytes=_code_bytes(ann),
        trained_bytes=4 * dim * dim * (index is not ann)
        + (4 * dim << ann.pq.nbits if hasattr(ann, "pq") else 0),
        trains=not index.is_trained,
        shardable=name not in _GRAPHS + _IVF_PACKED,
        mappable=name in _IVF,
        removable=name not in _GRAPHS + _IVF_PACKED,
    )


def make_ann(factory: str, dim: int) -> Any:
    """An empty index under the inner product. ConfigError that names the string where faiss refuses it."""
    try:
        return faiss.index_factory(dim, factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise ConfigError(
            f"index.kind: {factory}",
            (
                f"auto, flat, ivf_flat, ivf_sq8, opq_ivf_pq, hnsw, or a faiss factory string for {dim} "
                "dimensions and the inner product"
            ),
            f"what faiss refuses ({_SIGNATURE.sub('', str(error).rsplit('Error: ', 1)[-1].strip())})",
            "mend the string, for instance IVF1024,PQ48x8",
        ) from None


def _code_bytes(ann: Any) -> int:
    if hasattr(ann, "hnsw"):
        links = 4 * (ann.hnsw.nb_neighbors(0) + 2) + 12
        return int(faiss.downcast_index(ann.storage).sa_code_size()) + links
    return int(ann.code_size)


def unwrap(index: Any) -> Any:
    """The innermost index, typed: what stands behind transforms and id maps.

    It is a view: keep `index` as long as it is used.
    """
    index = faiss.downcast_index(index)
    while isinstance(index, faiss.IndexPreTransform | faiss.IndexIDMap):
        index = faiss.downcast_index(index.index)
    return index


def chain_of(index: Any) -> list[Any]:
    """The transforms before the ANN index, typed, in the order of their use; none for an index without."""
    chain: Any = index.chain if isinstance(index, faiss.IndexPreTransform) else None
    return [
        faiss.downcast_VectorTransform(chain.at(number)) for number in range(chain.size() if chain else 0)
    ]


def graph_search(index: Any, least: int) -> Any:
    """faiss search parameters that raise efSearch of an HNSW index to at least `least`; None for other kinds."""
    if isinstance(index, faiss.IndexPreTransform):
        inner = graph_search(faiss.downcast_index(index.index), least)
        return None if inner is None else faiss.SearchParametersPreTransform(index_params=inner)
    if isinstance(index, faiss.IndexIDMap):
        return graph_search(faiss.downcast_index(index.index), least)
    return (
        faiss.SearchParametersHNSW(efSearch=max(index.hnsw.efSearch, least))
        if hasattr(index, "hnsw")
        else None
    )


def list_search(index: Any, nprobe: int) -> Any:
    """faiss search parameters with which an IVF index visits `nprobe` lists."""
    if isinstance(index, faiss.IndexPreTransform):
        return faiss.SearchParametersPreTransform(
            index_params=list_search(faiss.downcast_index(index.index), nprobe)
        )
    return faiss.SearchParametersIVF(nprobe=nprobe)


def ivf_of(index: Any) -> Any | None:
    """The IVF inside, typed, a view; None where there is none."""
    ann = unwrap(index)
    return ann if isinstance(ann, faiss.IndexIVF) else None


def has_lists_apart(index: Any) -> bool:
    """Whether the inverted lists are in a file of their own."""
    ivf = ivf_of(index)
    lists = None if ivf is None else faiss.downcast_InvertedLists(ivf.invlists)
    return isinstance(lists, faiss.OnDiskInvertedLists)


def id_map_of(index: Any) -> Any | None:
    """The map from place to address of an index that keeps no ids of its own; None for an IVF."""
    inner = faiss.downcast_index(index.index) if isinstance(index, faiss.IndexPreTransform) else index
    return inner if isinstance(inner, faiss.IndexIDMap) else None


def can_remove(index: Any) -> bool:
    """Whether rows can be taken out and others added afterwards."""
    return type(unwrap(index)).__name__ not in _GRAPHS + _IVF_PACKED


def can_merge(index: Any) -> bool:
    """Whether parts of this kind can be filled apart."""
    return type(unwrap(index)).__name__ not in _GRAPHS + _IVF_PACKED


def addresses_of(index: Any) -> Iterator[np.ndarray]:
    """All addresses (int64) block by block: list by list of an IVF, in order of adding otherwise.

    The blocks are copies.
    """
    if (ivf := ivf_of(index)) is not None:
        for number in range(ivf.nlist):
            if size := ivf.invlists.list_size(number):
                ids = ivf.invlists.get_ids(number)
                yield faiss.rev_swig_ptr(ids, size).copy()
                ivf.invlists.release_ids(number, ids)
        return
    id_map = id_map_of(index)
    if id_map is None:
        raise DataError(
            "index",
            "addresses in an IVF or an id map",
            type(unwrap(index)).__name__,
            "build the index with this package",
        )
    places = faiss.rev_swig_ptr(id_map.id_map.data(), index.ntotal)
    for start in range(0, index.ntotal, _BLOCK_ROWS):
        yield places[start : start + _BLOCK_ROWS].copy()


def imbalance(index: Any) -> float:
    """How unevenly the lists are filled: 1 for equal ones (Jegou et al. 2011, eq. 5); 1 for an index without
    lists.
    """
    ivf = ivf_of(index)
    return 1.0 if ivf is None or not index.ntotal else float(ivf.invlists.imbalance_factor())


def fingerprint(index: Any) -> str:
    """sha256 (hex) over all that training and settings fixed, rows and search effort left out: transforms,
    metric, lists and their centroids, codebooks.

    faiss merges indexes of different codebooks without an error and answers wrongly afterwards; two parts fit
    together where their fingerprints are equal.
    """
    digest = hashlib.sha256()
    for part in _trained_parts(index):
        piece = part if isinstance(part, bytes) else repr(part).encode()
        digest.update(len(piece).to_bytes(8, "little") + piece)
    return digest.hexdigest()


def _trained_parts(index: Any) -> Iterator[Any]:
    yield index.d, index.metric_type
    if isinstance(index, faiss.IndexPreTransform):
        for step in chain_of(index):
            yield from _transform_parts(step)
    ann = unwrap(index)
    yield _type_name(ann), ann.d, ann.metric_type
    if isinstance(ann, faiss.IndexIVF):
        quantizer = faiss.downcast_index(ann.quantizer)
        yield ann.nlist, ann.code_size, ann.by_residual, _type_name(quantizer)
        yield quantizer.reconstruct_n(0, quantizer.ntotal).tobytes()
    elif hasattr(ann, "hnsw"):
        yield ann.hnsw.nb_neighbors(0), ann.hnsw.efConstruction
        ann = faiss.downcast_index(ann.storage)
    if hasattr(ann, "pq"):
        yield ann.pq.M, ann.pq.nbits
        yield faiss.vector_to_array(ann.pq.centroids).tobytes()
    if hasattr(ann, "sq"):
        yield ann.sq.qtype, ann.sq.rangestat
        yield faiss.vector_to_array(ann.sq.trained).tobytes()


def _type_name(index: Any) -> str:
    """faiss calls a flat index IndexFlat when the factory makes it and IndexFlatIP when it is read from a
    file.
    """
    return "IndexFlat" if isinstance(index, faiss.IndexFlat) else type(index).__name__


def _transform_parts(transform: Any) -> Iterator[Any]:
    linear = isinstance(
        transform, faiss.LinearTransform
    )  # OPQ and PCA too: a file keeps the matrix, not how it was found
    yield "LinearTransform" if linear else type(transform).__name__, transform.d_in, transform.d_out
    if linear:
        yield faiss.vector_to_array(transform.A).tobytes()
        yield faiss.vector_to_array(transform.b).tobytes()
    if isinstance(transform, faiss.NormalizationTransform):
        yield transform.norm
