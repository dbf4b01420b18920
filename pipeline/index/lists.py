"""Read, write and remove rows of inverted lists in memory; the order of the other rows stays.

faiss itself moves the last row of a list to the position of a removed one. So rows with equal scores would
come in another order, and a list with fast-scan codes would keep the codes of removed rows after its end.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from pipeline.index.library import faiss

IsRemoved = Callable[[np.ndarray], np.ndarray]
"""returns a mask (n,) bool of the ids (n,) int64 of a list"""


def is_one_of(ids: np.ndarray) -> IsRemoved:
    """Return a function that says which of its argument's ids are in `ids` (n,), by bisection."""
    known = np.unique(ids)

    def contains(asked: np.ndarray) -> np.ndarray:
        if not len(known):
            return np.zeros(len(asked), dtype=bool)
        positions = np.minimum(np.searchsorted(known, asked), len(known) - 1)
        return np.asarray(known[positions] == asked)

    return contains


def ids_in(lists: Any, number: int) -> np.ndarray:
    """Return the ids (n,) int64 of a list, as a view."""
    if not (size := lists.list_size(number)):
        return np.zeros(0, dtype=np.int64)
    return np.asarray(faiss.rev_swig_ptr(lists.get_ids(number), size))


def codes_in(lists: Any, number: int) -> np.ndarray:
    """Return a copy of the codes (n, code_size) uint8 of a list, which may pack several rows in a block."""
    size = lists.list_size(number)
    if not isinstance(lists, faiss.BlockInvertedLists):
        shape = (size, lists.code_size)
        return _bytes_in(lists, number, size * lists.code_size).reshape(shape).copy()
    packer, blocks = lists.packer, _blocks_in(lists, number)
    codes = np.zeros((len(blocks), lists.n_per_block, packer.code_size), dtype=np.uint8)
    for block, of_block in zip(blocks, codes, strict=True):
        packer.unpack_all(faiss.swig_ptr(block), faiss.swig_ptr(of_block))
    return codes.reshape(-1, packer.code_size)[:size]


def write_codes(lists: Any, number: int, codes: np.ndarray) -> None:
    """Write codes (n, code_size) uint8 of all n rows of a list.

    The rest of the last block is zero afterwards, as in a list that never had other rows.
    """
    if not isinstance(lists, faiss.BlockInvertedLists):
        _bytes_in(lists, number, codes.size)[:] = codes.ravel()
        return
    packer, blocks = lists.packer, _blocks_in(lists, number)
    padded = np.zeros((len(blocks), lists.n_per_block, packer.code_size), dtype=np.uint8)
    padded.reshape(-1, packer.code_size)[: len(codes)] = codes
    blocks[:] = 0  # packing keeps bits that are set
    for block, of_block in zip(blocks, padded, strict=True):
        packer.pack_all(faiss.swig_ptr(of_block), faiss.swig_ptr(block))


def remove_from_lists(ivf: Any, is_removed: IsRemoved) -> int:
    """Remove rows from the lists in memory of an IVF index, and return their number."""
    lists, before = faiss.downcast_InvertedLists(ivf.invlists), ivf.ntotal
    removed = 0
    for number in range(ivf.nlist):
        ids = ids_in(lists, number)
        is_kept = ~is_removed(ids)
        if is_kept.all():
            continue
        codes, kept = codes_in(lists, number)[is_kept], int(is_kept.sum())
        ids[:kept] = ids[is_kept]
        removed += len(ids) - kept
        lists.resize(number, kept)
        write_codes(lists, number, codes)
    ivf.ntotal = before - removed
    return removed


def _bytes_in(lists: Any, number: int, count: int) -> np.ndarray:
    """Return the first `count` bytes of the codes of a list, as a view."""
    if not count:
        return np.zeros(0, dtype=np.uint8)
    return np.asarray(faiss.rev_swig_ptr(lists.get_codes(number), count))


def _blocks_in(lists: Any, number: int) -> np.ndarray:
    """Return the blocks (b, block_size) uint8 of a list with packed codes, as a view."""
    blocks = -(-lists.list_size(number) // lists.n_per_block)
    return _bytes_in(lists, number, blocks * lists.block_size).reshape(blocks, lists.block_size)
