"""Remove rows from inverted lists; the order of the others stays.

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


def remove_from_lists(ivf: Any, is_removed: IsRemoved) -> int:
    """Remove rows from the lists in memory of an IVF index, and return their number."""
    lists, before = faiss.downcast_InvertedLists(ivf.invlists), ivf.ntotal
    keep_rows = _keep_in_blocks if isinstance(lists, faiss.BlockInvertedLists) else _keep_in_arrays
    removed = 0
    for number in range(ivf.nlist):
        if not (size := lists.list_size(number)):
            continue
        ids = faiss.rev_swig_ptr(lists.get_ids(number), size)
        is_kept = ~is_removed(ids)
        if (kept := int(is_kept.sum())) < size:
            keep_rows(lists, number, is_kept)
            ids[:kept] = ids[is_kept]
            lists.resize(number, kept)
            removed += size - kept
    ivf.ntotal = before - removed
    return removed


def _keep_in_arrays(lists: Any, number: int, is_kept: np.ndarray) -> None:
    """Move the kept codes of a list to its beginning."""
    size = len(is_kept)
    codes = faiss.rev_swig_ptr(lists.get_codes(number), size * lists.code_size).reshape(size, -1)
    codes[: is_kept.sum()] = codes[is_kept]


def _keep_in_blocks(lists: Any, number: int, is_kept: np.ndarray) -> None:
    """Move the kept codes of a list to its beginning, where the codes of several rows are in one block.

    The rest of the list is zero afterwards, as in a list that never had the other rows.
    """
    packer, per_block = lists.packer, lists.n_per_block
    blocks = -(-len(is_kept) // per_block)
    packed = faiss.rev_swig_ptr(lists.get_codes(number), blocks * lists.block_size).reshape(blocks, -1)
    codes = np.zeros((blocks, per_block, packer.code_size), dtype=np.uint8)
    for block, of_block in zip(packed, codes, strict=True):
        packer.unpack_all(faiss.swig_ptr(block), faiss.swig_ptr(of_block))
    rows = codes.reshape(-1, packer.code_size)
    kept = rows[: len(is_kept)][is_kept]
    rows[:], packed[:] = 0, 0
    rows[: len(kept)] = kept
    for block, of_block in zip(packed, codes, strict=True):
        packer.pack_all(faiss.swig_ptr(of_block), faiss.swig_ptr(block))
