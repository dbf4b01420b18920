"""Inspect a faiss index: its class and abilities, its components, and a fingerprint of its training."""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.errors import ConfigError, DataError
from pipeline.index.library import faiss
from pipeline.index.refine import id_map_of, index_refine_of, refine, without_transforms_and_ids
from pipeline.settings.index_kinds import KIND_NAMES, REFINED_BYTES, IndexLayout

_CPP_SIGNATURE = re.compile(r"^Error in .*? at \S+:\d+: ")  # text before the reason in errors of faiss
_OPQ_CODEWORDS = 256  # faiss: OPQ trains a product quantizer of 8 bits, whatever the codes after it
_BLOCK_ROWS = 1 << 16  # addresses that are yielded at once


@dataclass(frozen=True)
class _Abilities:
    """Abilities of a class of faiss index."""

    exact: bool = False
    """vectors are stored uncompressed, so scores are exact"""
    append_only: bool = False
    """rows cannot be removed, and parts cannot be merged"""
    mappable: bool = False
    """the inverted lists can be in a second file, which searchers map into memory"""


_ABILITIES = {
    "IndexFlat": _Abilities(exact=True),
    "IndexFlatIP": _Abilities(exact=True),
    "IndexScalarQuantizer": _Abilities(),
    "IndexPQ": _Abilities(),
    "IndexIVFFlat": _Abilities(exact=True, mappable=True),
    "IndexIVFScalarQuantizer": _Abilities(mappable=True),
    "IndexIVFPQ": _Abilities(mappable=True),
    "IndexIVFRaBitQ": _Abilities(mappable=True),
    # FastScan interleaves the codes of 32 rows. In faiss 1.15.1, merging three such indexes corrupts memory,
    # and a row that is added after a removal gets the bitwise or of its code and the removed row's code, so
    # its scores are wrong.
    "IndexIVFPQFastScan": _Abilities(append_only=True),
    "IndexHNSWFlat": _Abilities(exact=True, append_only=True),
    "IndexHNSWSQ": _Abilities(append_only=True),
}


def inspect_factory(factory: str, dim: int) -> IndexLayout:
    """Return the layout of the index that a factory string makes for vectors of `dim` components.

    Raises:
        ConfigError: faiss refuses the string, or it makes an index that this package does not support.
    """
    index = make_ann(factory, dim)
    ann = faiss.downcast_index(index.index) if isinstance(index, faiss.IndexPreTransform) else index
    refined = ann if type(ann) is faiss.IndexRefine else None
    if refined is not None:
        ann = faiss.downcast_index(refined.base_index)
    name = type(ann).__name__
    if name not in _ABILITIES or (refined is not None and not isinstance(ann, faiss.IndexIVF)):
        raise ConfigError(
            f"index.kind: {factory}",
            "an IVF (Flat, SQ, PQ, PQfs), flat, SQ, PQ or HNSW index, with or without a transform before it",
            name,
            f"leave out IDMap (the build adds ids), RFlat and the like, or choose one of "
            f"{', '.join(KIND_NAMES)}",
        )
    _check_trainable(factory, index, ann)
    codewords = 1 << ann.pq.nbits if hasattr(ann, "pq") else 0
    nlist = getattr(ann, "nlist", 0)
    rotation_bytes = 4 * dim * dim if index is not ann else 0
    if hasattr(ann, "hnsw"):
        links_bytes = 4 * (ann.hnsw.nb_neighbors(0) + 2) + 12
        row_bytes = faiss.downcast_index(ann.storage).sa_code_size() + links_bytes
    else:
        row_bytes = ann.code_size
    refine_bytes = faiss.downcast_index(refined.refine_index).sa_code_size() if refined is not None else 0
    return IndexLayout(
        factory=factory,
        row_bytes=row_bytes + (refine_bytes + REFINED_BYTES if refine_bytes else 0),
        fixed_bytes=4 * dim * nlist + rotation_bytes + 4 * dim * codewords,
        nlist=nlist,
        codewords=codewords,
        trains=not index.is_trained,
        append_only=_ABILITIES[name].append_only,
        mappable=_ABILITIES[name].mappable and not refine_bytes,
        mapped_bytes=refine_bytes,
        transform_rows=max(map(_training_rows, transforms_of(index)), default=0),
    )


def _check_trainable(factory: str, index: Any, ann: Any) -> None:
    """Raise ConfigError if no rows can train `index`, in which `ann` comes after the transforms."""
    problems = [problem for transform in transforms_of(index) if (problem := _impossible(transform))]
    if isinstance(ann, faiss.IndexIVF) and not ann.nlist:
        problems.append("no inverted lists")
    # with fewer links, faiss reads outside of its memory
    if any(int(links) < 2 for links in re.findall(r"HNSW(\d+)", factory)):
        problems.append("a graph with fewer than 2 links for each row")
    if problems:
        remedy = "correct the string, for instance PCA64,IVF1024,Flat"
        raise ConfigError(f"index.kind: {factory}", "an index that can be trained", problems[0], remedy)


def _impossible(transform: Any) -> str | None:
    """Describe why a transform cannot be trained, whatever the rows; None if it can be."""
    name, d_in, d_out = type(transform).__name__, transform.d_in, transform.d_out
    if not d_out:
        return f"{name} to no dimensions"
    if isinstance(transform, faiss.PCAMatrix | faiss.ITQTransform) and d_out > d_in:
        return f"{name} from {d_in} to {d_out} dimensions"
    if isinstance(transform, faiss.OPQMatrix) and d_out % transform.M:
        return f"{transform.M} sub-quantizers of {d_out} dimensions"
    return None


def _training_rows(transform: Any) -> int:
    """Return the least number of rows that faiss trains a transform on."""
    if isinstance(transform, faiss.OPQMatrix):
        return _OPQ_CODEWORDS
    has_components = isinstance(transform, faiss.PCAMatrix | faiss.ITQTransform)
    return int(transform.d_out) if has_components and not transform.is_trained else 0


def make_ann(factory: str, dim: int) -> Any:
    """Make an empty index for the inner product. Raises ConfigError if faiss refuses the factory string.

    A suffix ",Refine(SQ8)" adds second codes, which encode the vectors after all transforms of the string.
    """
    first, separator, second = factory.partition(",Refine(")
    index = _from_factory(first, dim, factory)
    if not separator:
        return index
    ann = faiss.downcast_index(index.index) if isinstance(index, faiss.IndexPreTransform) else index
    refined = refine(ann, _from_factory(second.removesuffix(")"), ann.d, factory), factory)
    if ann is index:
        return refined
    index.index = refined
    refined.this.disown()
    return index


def _from_factory(part: str, dim: int, factory: str) -> Any:
    """Make an index from a part of a factory string, for the inner product."""
    try:
        return faiss.index_factory(dim, part, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        reason = _CPP_SIGNATURE.sub("", str(error).rsplit("Error: ", 1)[-1].strip())
        raise ConfigError(
            f"index.kind: {factory}",
            f"{', '.join(KIND_NAMES)}, or a faiss factory string for {dim} dimensions and the inner product",
            f"a string that faiss refuses ({reason})",
            "correct the string, for instance IVF1024,PQ48x8",
        ) from None


def unwrap(index: Any) -> Any:
    """Return the innermost index, without transforms, id maps and refinement, as an object of its class.

    The result is a view: keep `index` alive while it is used.
    """
    index = without_transforms_and_ids(index)
    return faiss.downcast_index(index.base_index) if isinstance(index, faiss.IndexRefine) else index


def transforms_of(index: Any) -> list[Any]:
    """Return the transforms that vectors pass before they reach the index, in order."""
    if not isinstance(index, faiss.IndexPreTransform):
        return []
    return [faiss.downcast_VectorTransform(index.chain.at(i)) for i in range(index.chain.size())]


def to_space_of(index: Any, vectors: np.ndarray) -> np.ndarray:
    """Return raw vectors (n, d) as the index compares them: after all of its transforms."""
    for transform in transforms_of(index):
        vectors = transform.apply(np.ascontiguousarray(vectors, dtype=np.float32))
    return np.ascontiguousarray(vectors, dtype=np.float32)


def ivf_of(index: Any) -> Any | None:
    """Return the IVF index inside `index`, as a view; None for other kinds."""
    ann = unwrap(index)
    return ann if isinstance(ann, faiss.IndexIVF) else None


def graph_of(index: Any) -> Any | None:
    """Return the graph of centroids inside an IVF index, as a view; None if it has none."""
    if (ivf := ivf_of(index)) is None:
        return None
    quantizer = faiss.downcast_index(ivf.quantizer)
    return quantizer if isinstance(quantizer, faiss.IndexHNSW) else None


def graph_effort(nprobe: int) -> int:
    """Return the efSearch with which a graph of centroids finds the `nprobe` nearest lists.

    A search of the graph ends when it has found `efSearch` nearer centroids, however many are asked for. With
    faiss's own 16, it misses a third of the nearest 256 of 20,000 random centroids of 16 dimensions, with
    this effort fewer than one in a hundred.
    """
    return max(64, 2 * nprobe)


def lists_of(ivf: Any) -> Any:
    """Return the inverted lists of an IVF index as an object of their actual class."""
    return faiss.downcast_InvertedLists(ivf.invlists)


def nlist_of(index: Any) -> int:
    """Return the number of inverted lists; 0 without lists."""
    return int(getattr(unwrap(index), "nlist", 0))


def has_lists_on_disk(index: Any) -> bool:
    """Return whether the inverted lists are in a second file."""
    ivf = ivf_of(index)
    return ivf is not None and isinstance(lists_of(ivf), faiss.OnDiskInvertedLists)


def set_index_effort(index: Any, effort: int) -> None:
    """Set nprobe (at most nlist) or efSearch of a faiss index; other kinds have no search effort.

    A graph of centroids gets the effort that finds so many lists.
    """
    ann = unwrap(index)
    if hasattr(ann, "nlist"):
        ann.nprobe = max(1, min(effort, ann.nlist))
        if (graph := graph_of(index)) is not None:
            graph.hnsw.efSearch = graph_effort(ann.nprobe)
    elif hasattr(ann, "hnsw"):
        ann.hnsw.efSearch = max(1, effort)


def is_exact(index: Any) -> bool:
    """Return whether the index stores vectors uncompressed, and scores all of the rows that it visits."""
    return _abilities_of(index).exact and index_refine_of(index) is None


def is_append_only(index: Any) -> bool:
    """Return whether rows can only be added: they cannot be removed, and parts cannot be merged."""
    return _abilities_of(index).append_only


def _abilities_of(index: Any) -> _Abilities:
    return _ABILITIES.get(type(unwrap(index)).__name__, _Abilities())


def addresses_of(index: Any) -> Iterator[np.ndarray]:
    """Yield all addresses (int64, copied) in blocks: one block for each inverted list, or in order of adding.

    Raises:
        DataError: the index has neither inverted lists nor an id map.
    """
    if (id_map := id_map_of(index)) is not None:
        addresses = faiss.rev_swig_ptr(id_map.id_map.data(), index.ntotal)
        for start in range(0, index.ntotal, _BLOCK_ROWS):
            yield addresses[start : start + _BLOCK_ROWS].copy()
        return
    if (ivf := ivf_of(index)) is None:
        raise DataError(
            "index",
            "addresses in an IVF or an id map",
            type(unwrap(index)).__name__,
            "build the index with this package",
        )
    for number in range(ivf.nlist):
        if size := ivf.invlists.list_size(number):
            ids = ivf.invlists.get_ids(number)
            yield faiss.rev_swig_ptr(ids, size).copy()
            ivf.invlists.release_ids(number, ids)


def fingerprint(index: Any) -> str:
    """Return the sha256 (hex) of the trained state: transforms, metric, centroids, codebooks.

    Rows and search effort are not included. faiss merges indexes with different codebooks without an error,
    and the result gives wrong answers, so parts are merged only if their fingerprints are equal.
    """
    digest = hashlib.sha256()
    for value in _trained_state(index):
        content = value if isinstance(value, bytes) else repr(value).encode()
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()


def _trained_state(index: Any) -> Iterator[Any]:
    """Yield the values that training determines, arrays as bytes."""
    yield index.d, index.metric_type
    for transform in transforms_of(index):
        # OPQ and PCA become plain linear transforms when they are written to a file.
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
    yield from _trained_codes(ann)
    if (refined := index_refine_of(index)) is not None:
        codes = faiss.downcast_index(refined.refine_index)
        yield _type_name(codes), codes.d, refined.k_factor
        yield from _trained_codes(codes)


def _trained_codes(ann: Any) -> Iterator[Any]:
    if hasattr(ann, "pq"):
        yield ann.pq.M, ann.pq.nbits
        yield faiss.vector_to_array(ann.pq.centroids).tobytes()
    if hasattr(ann, "sq"):
        yield ann.sq.qtype, ann.sq.rangestat
        yield faiss.vector_to_array(ann.sq.trained).tobytes()


def _type_name(index: Any) -> str:
    """Return the class name, but IndexFlat for IndexFlatIP, because faiss reads a stored IndexFlatIP as
    IndexFlat.
    """
    return "IndexFlat" if isinstance(index, faiss.IndexFlat) else type(index).__name__
