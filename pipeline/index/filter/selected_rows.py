"""Locate the rows of a set of addresses in a faiss index, and read their vectors."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from pipeline.index.filter.address_set import AddressSet
from pipeline.index.library import faiss
from pipeline.index.refine import id_map_of
from pipeline.index.structure import ivf_of, unwrap

_BLOCK_ROWS = 1 << 16  # rows whose addresses are looked up at once, in an index without lists


class RowBlock(NamedTuple):
    """Some rows of an index."""

    list_number: int
    """their inverted list; -1 without lists"""
    positions: np.ndarray
    """(n,) int64, offsets in the list; if there is an id map, numbers in the order of adding"""
    addresses: np.ndarray
    """(n,) int64"""


def locate(index: Any, members: AddressSet) -> Iterator[RowBlock]:
    """Yield the rows of an index whose addresses are in a set, list by list."""
    id_map, ivf = id_map_of(index), ivf_of(index)
    mapped = None if id_map is None else faiss.rev_swig_ptr(id_map.id_map.data(), index.ntotal)
    if ivf is None:
        assert mapped is not None
        for start in range(0, index.ntotal, _BLOCK_ROWS):
            addresses = mapped[start : start + _BLOCK_ROWS]
            offsets = np.flatnonzero(members.contains(addresses))
            yield RowBlock(-1, start + offsets, addresses[offsets])
        return
    for number in range(ivf.nlist):
        if not (size := ivf.invlists.list_size(number)):
            continue
        ids = ivf.invlists.get_ids(number)
        stored = faiss.rev_swig_ptr(ids, size)
        addresses = stored if mapped is None else mapped[stored]
        offsets = np.flatnonzero(members.contains(addresses))
        yield RowBlock(number, offsets if mapped is None else stored[offsets], addresses[offsets])
        ivf.invlists.release_ids(number, ids)


def stored_vectors(index: Any, block: RowBlock) -> np.ndarray:
    """Return the vectors (n, d) float32 of rows of an index that does not compress them, transformed.

    Such an index has no refinement, so positions in a list are offsets.
    """
    ann = unwrap(index)
    if block.list_number < 0:
        return np.asarray(ann.reconstruct_batch(block.positions))
    vectors = np.empty((len(block.positions), ann.d), dtype=np.float32)
    for row, offset in enumerate(block.positions.tolist()):
        ann.reconstruct_from_offset(block.list_number, offset, faiss.swig_ptr(vectors[row]))
    return vectors
