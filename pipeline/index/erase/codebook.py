"""Codewords and bounds of a trained index that are components of erased rows.

A codeword of a product quantizer that k-means found for one row is a part of its vector. It is set to zero if
no row that stays has it in its code. Otherwise it stays, because codes mean nothing without it, and so do the
bounds of a scalar quantizer, each of which is one component of one row. They are counted.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pipeline.index.library import faiss
from pipeline.index.lists import IsRemoved, codes_in, ids_in
from pipeline.index.refine import id_map_of, index_refine_of
from pipeline.index.structure import ivf_of, lists_of, unwrap

_ROUNDING = 1e-6  # for the components of a vector of length 1
_BLOCK_ROWS = 512  # rows that are compared with all codewords at once

Codeword = tuple[int, int]
"""number of a sub-quantizer, and number of one of its codewords"""


@dataclass
class OwnCodewords:
    """Codewords and bounds that are components of erased rows."""

    index: Any
    """a trained index"""
    codewords: set[Codeword] = field(default_factory=set)
    bounds: set[Codeword] = field(default_factory=set)
    """0 for the lowest and 1 for the highest value, and the dimension"""

    def add(self, residuals: np.ndarray, vectors: np.ndarray) -> None:
        """Add erased rows.

        Args:
            residuals: (n, d) float32 that the index's own codes encode.
            vectors: (n, d) float32 in the space of the index, which second codes encode.
        """
        ann, refined = _coded(self.index), index_refine_of(self.index)
        if hasattr(ann, "pq"):
            self.codewords |= _codewords_of(ann.pq, residuals)
        second: Any = faiss.downcast_index(refined.refine_index) if refined is not None else None
        for coder, values in ((ann, residuals), (second, vectors)):
            if hasattr(coder, "sq"):
                self.bounds |= _bounds_of(coder.sq, values)


def unused_codewords(parts: Iterable[Any], codewords: set[Codeword], is_erased: IsRemoved) -> set[Codeword]:
    """Return the codewords that no row that stays has in its code, in all parts of an index."""
    unused = set(codewords)
    for index in parts if codewords else ():
        pq = _coded(index).pq
        if pq.nbits not in (4, 8):
            return set()
        for codes in _remaining_codes(index, is_erased):
            numbers = (
                codes if pq.nbits == 8 else np.stack([codes & 15, codes >> 4], axis=2).reshape(len(codes), -1)
            )
            unused = {(sub, word) for sub, word in unused if not (numbers[:, sub] == word).any()}
    return unused


def clear_codewords(index: Any, codewords: np.ndarray) -> None:
    """Set codewords (c, 2) of an index to zero."""
    if len(codewords):
        pq = _coded(index).pq
        values = faiss.vector_to_array(pq.centroids).reshape(pq.M, pq.ksub, pq.dsub)
        values[codewords[:, 0], codewords[:, 1]] = 0
        faiss.copy_array_to_vector(values.ravel(), pq.centroids)


def _coded(index: Any) -> Any:
    """Return the index whose codes searches score first; of a graph, its storage."""
    ann = unwrap(index)
    return faiss.downcast_index(ann.storage) if hasattr(ann, "storage") else ann


def _codewords_of(pq: Any, residuals: np.ndarray) -> set[Codeword]:
    """Return the codewords that are parts of the residuals."""
    words = faiss.vector_to_array(pq.centroids).reshape(pq.M, pq.ksub, pq.dsub)
    found = set[Codeword]()
    for start in range(0, len(residuals), _BLOCK_ROWS):
        parts = residuals[start : start + _BLOCK_ROWS].reshape(-1, pq.M, 1, pq.dsub)
        for sub in range(pq.M):
            is_same = (np.abs(parts[:, sub] - words[sub]) <= _ROUNDING).all(axis=2).any(axis=0)
            found |= {(sub, word) for word in np.flatnonzero(is_same & words[sub].any(axis=1)).tolist()}
    return found


def _bounds_of(sq: Any, values: np.ndarray) -> set[Codeword]:
    """Return the bounds of a scalar quantizer that are components of the values."""
    trained = faiss.vector_to_array(sq.trained)
    if len(trained) != 2 * values.shape[1]:  # float16, or bounds of all dimensions together
        return set()
    lowest, width = np.split(trained, 2)
    bounds = np.stack([lowest, lowest + width])
    is_same = (np.abs(values[:, None] - bounds) <= _ROUNDING).any(axis=0)
    return {(side, dim) for side, dim in np.argwhere(is_same).tolist()}


def _remaining_codes(index: Any, is_erased: IsRemoved) -> Iterator[np.ndarray]:
    """Yield the codes (n, code_size) of the rows that stay."""
    ivf, id_map = ivf_of(index), id_map_of(index)
    addresses = faiss.vector_to_array(id_map.id_map) if id_map is not None else None
    if ivf is None:
        assert addresses is not None
        coded = _coded(index)
        yield faiss.vector_to_array(coded.codes).reshape(-1, coded.code_size)[~is_erased(addresses)]
        return
    lists = lists_of(ivf)
    for number in range(ivf.nlist):
        ids = ids_in(lists, number)
        if len(ids):
            yield codes_in(lists, number)[~is_erased(ids if addresses is None else addresses[ids])]
