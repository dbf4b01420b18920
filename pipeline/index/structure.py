"""The structure of a faiss index: supported classes, components, and a fingerprint of its training."""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.errors import ConfigError, DataError
from pipeline.index.library import faiss
from pipeline.settings.index_kinds import INDEX_KINDS, IndexLayout

_SIGNATURE = re.compile(r"^Error in .*? at \S+:\d+: ")  # of the C++ function that refuses a factory string
_BLOCK_ROWS = 1 << 16


@dataclass(frozen=True)
class _FaissClass:
    """Abilities of a class of faiss.

    Attributes:
        exact: vectors are stored as they are, so scores are exact.
        fixed: rows cannot be removed, nor parts merged.
        mappable: the inverted lists can be in a file of their own.
    """

    exact: bool = False
    fixed: bool = False
    mappable: bool = False


_CLASSES = {
    "IndexFlat": _FaissClass(exact=True),
    "IndexFlatIP": _FaissClass(exact=True),
    "IndexScalarQuantizer": _FaissClass(),
    "IndexPQ": _FaissClass(),
    "IndexIVFFlat": _FaissClass(exact=True, mappable=True),
    "IndexIVFScalarQuantizer": _FaissClass(mappable=True),
    "IndexIVFPQ": _FaissClass(mappable=True),
    # Codes of 32 rows are interleaved. In faiss 1.15.1, merging three such indexes corrupts memory, and a row
    # added after a removal takes a free position without clearing it: its code becomes the bitwise or of both
    # codes, and its scores are wrong.
    "IndexIVFPQFastScan": _FaissClass(fixed=True),
    "IndexHNSWFlat": _FaissClass(exact=True, fixed=True),
    "IndexHNSWSQ": _FaissClass(fixed=True),
}


def inspect_factory(factory: str, dim: int) -> IndexLayout:
    """Return the layout of the index that a factory string makes for vectors of `dim` components.

    Raises:
        ConfigError: faiss refuses the string, or the ids of the index would not survive a merge.
    """
    index = make_ann(factory, dim)
    ann = faiss.downcast_index(index.index) if isinstance(index, faiss.IndexPreTransform) else index
    name = type(ann).__name__
    if name not in _CLASSES:
        raise ConfigError(
            f"index.kind: {factory}",
            "an IVF (Flat, SQ, PQ, PQfs), flat, SQ, PQ or HNSW index, at most behind a transform; "
            "ids are added by the build",
            name,
            f"leave out IDMap, Refine and the like, or choose one of {', '.join(INDEX_KINDS)}",
        )
    codewords = 1 << ann.pq.nbits if hasattr(ann, "pq") else 0
    nlist = getattr(ann, "nlist", 0)
    rotation_bytes = 4 * dim * dim if index is not ann else 0
    if hasattr(ann, "hnsw"):
        links_bytes = 4 * (ann.hnsw.nb_neighbors(0) + 2) + 12
        row_bytes = faiss.downcast_index(ann.storage).sa_code_size() + links_bytes
    else:
        row_bytes = ann.code_size
    return IndexLayout(
        factory=factory,
        row_bytes=row_bytes,
        fixed_bytes=4 * dim * nlist + rotation_bytes + 4 * dim * codewords,
        nlist=nlist,
        codewords=codewords,
        trains=not index.is_trained,
        shardable=not _CLASSES[name].fixed,
        removable=not _CLASSES[name].fixed,
        mappable=_CLASSES[name].mappable,
    )


def make_ann(factory: str, dim: int) -> Any:
    """Make an empty index for the inner product. Raises ConfigError if faiss refuses the factory string."""
    try:
        return faiss.index_factory(dim, factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        reason = _SIGNATURE.sub("", str(error).rsplit("Error: ", 1)[-1].strip())
        raise ConfigError(
            f"index.kind: {factory}",
            f"{', '.join(INDEX_KINDS)}, or a faiss factory string for {dim} dimensions and the inner product",
            f"a string that faiss refuses ({reason})",
            "mend the string, for instance IVF1024,PQ48x8",
        ) from None


def unwrap(index: Any) -> Any:
    """Return the innermost index, inside transforms and id maps, as an object of its own class.

    It is a view: keep `index` alive while it is used.
    """
    index = faiss.downcast_index(index)
    while isinstance(index, faiss.IndexPreTransform | faiss.IndexIDMap):
        index = faiss.downcast_index(index.index)
    return index


def chain_of(index: Any) -> list[Any]:
    """Return the transforms that are applied before the index, in their order."""
    if not isinstance(index, faiss.IndexPreTransform):
        return []
    return [faiss.downcast_VectorTransform(index.chain.at(number)) for number in range(index.chain.size())]


def graph_search(index: Any, least: int) -> Any:
    """Return faiss search parameters that raise efSearch of an HNSW index to at least `least`.

    None for other kinds.
    """
    if not hasattr(ann := unwrap(index), "hnsw"):
        return None
    return _through_transforms(index, faiss.SearchParametersHNSW(efSearch=max(ann.hnsw.efSearch, least)))


def list_search(index: Any, nprobe: int) -> Any:
    """Return faiss search parameters with which an IVF index visits `nprobe` lists."""
    return _through_transforms(index, faiss.SearchParametersIVF(nprobe=nprobe))


def _through_transforms(index: Any, parameters: Any) -> Any:
    if isinstance(index, faiss.IndexPreTransform):
        return faiss.SearchParametersPreTransform(index_params=parameters)
    return parameters


def ivf_of(index: Any) -> Any | None:
    """Return the IVF index inside `index`, as a view; None if it has no lists."""
    ann = unwrap(index)
    return ann if isinstance(ann, faiss.IndexIVF) else None


def lists_of(ivf: Any) -> Any:
    """Return the inverted lists of an IVF index as an object of their own class."""
    return faiss.downcast_InvertedLists(ivf.invlists)


def nlist_of(index: Any) -> int:
    """Return the number of inverted lists; 0 without lists."""
    return int(getattr(unwrap(index), "nlist", 0))


def has_lists_on_disk(index: Any) -> bool:
    """Return whether the inverted lists are in a file of their own."""
    ivf = ivf_of(index)
    return ivf is not None and isinstance(lists_of(ivf), faiss.OnDiskInvertedLists)


def is_exact(index: Any) -> bool:
    """Return whether the index stores the vectors that it is given, without compressing them."""
    return _class_of(index).exact


def is_fixed(index: Any) -> bool:
    """Return whether parts of this kind cannot be merged, nor rows be removed."""
    return _class_of(index).fixed


def _class_of(index: Any) -> _FaissClass:
    return _CLASSES.get(type(unwrap(index)).__name__, _FaissClass())


def addresses_of(index: Any) -> Iterator[np.ndarray]:
    """Yield copies of all addresses (int64) in blocks: an IVF list by list, others in the order of adding.

    Raises:
        DataError: the index has neither lists nor an id map.
    """
    if (ivf := ivf_of(index)) is not None:
        for number in range(ivf.nlist):
            if size := ivf.invlists.list_size(number):
                ids = ivf.invlists.get_ids(number)
                yield faiss.rev_swig_ptr(ids, size).copy()
                ivf.invlists.release_ids(number, ids)
        return
    inner = faiss.downcast_index(index.index) if isinstance(index, faiss.IndexPreTransform) else index
    if not isinstance(inner, faiss.IndexIDMap):
        raise DataError(
            "index",
            "addresses in an IVF or an id map",
            type(unwrap(index)).__name__,
            "build the index with this package",
        )
    addresses = faiss.rev_swig_ptr(inner.id_map.data(), index.ntotal)
    for start in range(0, index.ntotal, _BLOCK_ROWS):
        yield addresses[start : start + _BLOCK_ROWS].copy()


def fingerprint(index: Any) -> str:
    """Return the sha256 (hex) of everything that training fixed: transforms, metric, centroids, codebooks.

    Rows and search effort do not enter it. faiss merges indexes with different codebooks without an error and
    the result gives wrong answers, so parts are merged only if their fingerprints are equal.
    """
    digest = hashlib.sha256()
    for part in _trained_parts(index):
        piece = part if isinstance(part, bytes) else repr(part).encode()
        digest.update(len(piece).to_bytes(8, "little") + piece)
    return digest.hexdigest()


def _trained_parts(index: Any) -> Iterator[Any]:
    yield index.d, index.metric_type
    for transform in chain_of(index):
        # OPQ and PCA are linear transforms too: a file keeps the matrix, not how it was found.
        linear = isinstance(transform, faiss.LinearTransform)
        yield "LinearTransform" if linear else type(transform).__name__, transform.d_in, transform.d_out
        if linear:
            yield faiss.vector_to_array(transform.A).tobytes()
            yield faiss.vector_to_array(transform.b).tobytes()
        if isinstance(transform, faiss.NormalizationTransform):
            yield transform.norm
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
    """Return one name for a flat index: IndexFlat from the factory is IndexFlatIP when read from a file."""
    return "IndexFlat" if isinstance(index, faiss.IndexFlat) else type(index).__name__
