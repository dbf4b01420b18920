"""Indexes that score the best candidates of an IVF index again, by second codes of all rows (IndexRefine).

faiss neither merges such indexes nor removes rows from them. An IndexRefine numbers its rows from 0 in the
order in which they were added: the inverted lists hold these numbers, the second codes are in their order,
and an id map around the IndexRefine gives the rows' addresses. So merging and removing have to keep lists,
codes and id map consistent.
"""

from typing import Any

import numpy as np

from pipeline.errors import ConfigError
from pipeline.index.library import faiss
from pipeline.index.lists import is_one_of, remove_from_lists

# Rows that are scored again for each answer. RaBitQ finds 0.991 of the ten nearest of 40,000 captions among
# its 40 best rows, 0.998 among its 80 best, and all among its 160 best.
CANDIDATES_PER_ANSWER = 8


def refine(ann: Any, codes: Any, factory: str) -> Any:
    """Combine an index with second codes of its rows, by which its best candidates are scored again.

    Args:
        ann: the index, which is handed over to the result.
        codes: an index whose codes are stored in the order of the rows; handed over too.
        factory: factory string of the result, for the error.

    Raises:
        ConfigError: the codes are of another kind.
    """
    if not isinstance(codes, faiss.IndexFlatCodes):
        raise ConfigError(
            f"index.kind: {factory}",
            "Refine(SQ8), Refine(SQ6), Refine(Flat) or the like",
            type(codes).__name__,
            "refine by codes that are stored in the order of the rows",
        )
    refined = faiss.IndexRefine(ann, codes)
    refined.own_fields = refined.own_refine_index = True
    ann.this.disown()
    codes.this.disown()
    refined.k_factor = CANDIDATES_PER_ANSWER
    return refined


def index_refine_of(index: Any) -> Any | None:
    """Return the IndexRefine inside `index`, as a view; None for an index without refinement."""
    inner = without_transforms_and_ids(index)
    return inner if isinstance(inner, faiss.IndexRefine) else None


def without_transforms_and_ids(index: Any) -> Any:
    """Return the index inside transforms and id maps as a view, an object of its actual class."""
    index = faiss.downcast_index(index)
    while isinstance(index, faiss.IndexPreTransform | faiss.IndexIDMap):
        index = faiss.downcast_index(index.index)
    return index


def id_map_of(index: Any) -> Any | None:
    """Return the IndexIDMap inside `index`, as a view; None for an index that stores ids itself."""
    index = faiss.downcast_index(index)
    inner = faiss.downcast_index(index.index) if isinstance(index, faiss.IndexPreTransform) else index
    return inner if isinstance(inner, faiss.IndexIDMap) else None


def merge_refined(index: Any, other: Any) -> None:
    """Move the rows of `other`, a refined index of the same training, to the end of `index`."""
    first, second = index_refine_of(index), index_refine_of(other)
    assert first is not None
    assert second is not None
    addresses = np.concatenate([_addresses(index), _addresses(other)])
    ivf, codes = _ivf_and_codes(first)
    other_ivf, other_codes = _ivf_and_codes(second)
    ivf.merge_from(other_ivf, ivf.ntotal)
    codes.merge_from(other_codes, 0)
    _set_addresses(index, addresses)


def add_to_refined(index: Any, addresses: np.ndarray, vectors: np.ndarray, lists: np.ndarray) -> None:
    """Add rows to the given lists of a refined index.

    Args:
        addresses: (n,) int64.
        vectors: (n, d) float32, after all transforms.
        lists: (n,) int64, the inverted list of each row.
    """
    refined, id_map = index_refine_of(index), id_map_of(index)
    assert refined is not None
    assert id_map is not None
    ivf, codes = _ivf_and_codes(refined)
    # None: the rows are numbered from ntotal
    ivf.add_core(len(vectors), faiss.swig_ptr(vectors), None, faiss.swig_ptr(lists))
    codes.add(vectors)
    id_map.id_map.resize(codes.ntotal)
    faiss.rev_swig_ptr(id_map.id_map.data(), codes.ntotal)[-len(addresses) :] = addresses
    index.ntotal = id_map.ntotal = refined.ntotal = codes.ntotal


def remove_from_refined(index: Any, addresses: np.ndarray) -> int:
    """Remove rows of a refined index, and return the number of them that were in it.

    Args:
        addresses: (n,) int64.
    """
    refined = index_refine_of(index)
    assert refined is not None
    addresses_before = _addresses(index)
    is_removed = is_one_of(addresses)(addresses_before)
    if not (count := int(is_removed.sum())):
        return 0
    ivf, codes = _ivf_and_codes(refined)
    remove_from_lists(ivf, lambda rows: is_removed[rows])
    codes.remove_ids(np.flatnonzero(is_removed))
    numbers = np.cumsum(~is_removed) - 1  # new number of each remaining row, by its old number
    for number in range(ivf.nlist):
        if size := ivf.invlists.list_size(number):
            rows = faiss.rev_swig_ptr(ivf.invlists.get_ids(number), size)
            rows[:] = numbers[rows]
    _set_addresses(index, addresses_before[~is_removed])
    return count


def _ivf_and_codes(refined: Any) -> tuple[Any, Any]:
    return faiss.downcast_index(refined.base_index), faiss.downcast_index(refined.refine_index)


def _addresses(index: Any) -> np.ndarray:
    """Return the addresses (n,) int64 of all rows in the order of adding."""
    id_map = id_map_of(index)
    assert id_map is not None
    return np.asarray(faiss.vector_to_array(id_map.id_map))


def _set_addresses(index: Any, addresses: np.ndarray) -> None:
    """Set the addresses of all rows, and the number of rows on every level."""
    refined, id_map = index_refine_of(index), id_map_of(index)
    assert refined is not None
    assert id_map is not None
    faiss.copy_array_to_vector(addresses, id_map.id_map)
    index.ntotal = id_map.ntotal = refined.ntotal = len(addresses)
