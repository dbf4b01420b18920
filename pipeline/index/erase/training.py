"""Values of a trained index that erased rows alone determined, and values that replace them.

If k-means had one row in a list, the list's centroid is the vector of that row. Such a centroid is replaced
by the mean direction of the rows that stay in the list, or by zero, to which no query and no row is nearest.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from pipeline.index.erase.codebook import Codeword, OwnCodewords, clear_codewords
from pipeline.index.library import faiss
from pipeline.index.lists import IsRemoved, codes_in, ids_in, write_codes
from pipeline.index.measure.truth import Batches
from pipeline.index.refine import id_map_of, index_refine_of
from pipeline.index.structure import ivf_of, lists_of, to_space_of
from pipeline.stats.tensors import pack, unpack

# Distance, of vectors of length 1, below which a centroid is a row's vector. k-means divides the rows of a
# list by copies of its centroid that are moved by 1/1024.
_SAME = 2e-3

Recode = Callable[[int, np.ndarray, np.ndarray], np.ndarray]
"""returns the codes (n, code_size) to write of a list, from its number, ids (n,) and codes"""


@dataclass(frozen=True, eq=False)
class TrainingChange:
    """New centroids of lists, and the rows in these lists, whose codes may depend on the centroid."""

    lists: np.ndarray
    """(l,) int64, numbers of lists, ascending"""
    centroids: np.ndarray
    """(l, d) float32, their new centroids in the space of the index"""
    addresses: np.ndarray
    """(n,) int64 of all rows that stay in these lists, ascending"""
    vectors: np.ndarray
    """(n, r) float32, their raw vectors"""
    codewords: np.ndarray
    """(c, 2) int64, sub-quantizers and codewords that become zero"""

    @classmethod
    def none(cls) -> Self:
        """Return a change of nothing."""
        no_rows, no_vectors = np.zeros(0, dtype=np.int64), np.zeros((0, 0), dtype=np.float32)
        return cls(no_rows, no_vectors, no_rows, no_vectors, np.zeros((0, 2), dtype=np.int64))

    def __bool__(self) -> bool:
        return bool(len(self.lists) or len(self.codewords))

    def to_bytes(self) -> bytes:
        """Return the content of a file."""
        return pack(dict(self.__dict__), {"kind": "training change"})

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Read the output of `to_bytes`; raise DataError for other content."""
        return cls(**unpack(content, *cls.__dataclass_fields__, kind="training change")[0])

    def apply(self, index: Any) -> Recode:
        """Change the training of an index. Returns a function that gives the new codes of its lists."""
        clear_codewords(index, self.codewords)
        ivf = ivf_of(index)
        if ivf is None or not len(self.lists):
            return lambda number, ids, codes: codes
        quantizer = faiss.downcast_index(ivf.quantizer)
        centroids = quantizer.reconstruct_n(0, ivf.nlist)
        centroids[self.lists] = self.centroids
        quantizer.reset()
        quantizer.add(centroids)  # a graph of centroids gets other links
        changed, map_ids = set(self.lists.tolist()), _addresses_of_ids(index)

        def recode(number: int, ids: np.ndarray, codes: np.ndarray) -> np.ndarray:
            if number not in changed or not len(ids) or not ivf.by_residual:
                return codes
            rows = np.searchsorted(self.addresses, map_ids(ids))
            vectors = to_space_of(index, self.vectors[rows])
            numbers, new = np.full(len(ids), number, dtype=np.int64), np.zeros_like(codes)
            ivf.encode_vectors(
                len(ids), faiss.swig_ptr(vectors), faiss.swig_ptr(numbers), faiss.swig_ptr(new)
            )
            return new

        return recode

    def apply_in_memory(self, index: Any) -> None:
        """Change the training of an index, and the codes in its lists."""
        recode, ivf = self.apply(index), ivf_of(index)
        for number in self.lists.tolist() if ivf is not None else ():
            lists = lists_of(ivf)
            before = codes_in(lists, number)
            write_codes(lists, number, recode(number, ids_in(lists, number), before))


@dataclass
class NearLists:
    """The lists to which erased rows belong, in a trained index."""

    index: Any
    sums: dict[int, np.ndarray] = field(default_factory=dict)
    """list -> sum of the erased vectors, of length 1 in the space of the index, that are nearest to it"""
    same: set[int] = field(default_factory=set)
    """lists whose centroid is the vector of an erased row"""

    def __post_init__(self) -> None:
        self.own = OwnCodewords(self.index)

    def add(self, batches: Batches) -> Self:
        """Add the raw vectors of erased rows."""
        ivf = ivf_of(self.index)
        for _, raw in batches:
            vectors = to_space_of(self.index, raw)
            if ivf is None:
                self.own.add(vectors, vectors)
                continue
            _, nearest = ivf.quantizer.search(vectors, 1)
            centroids = ivf.quantizer.reconstruct_batch(nearest[:, 0])
            self.own.add(vectors - centroids if ivf.by_residual else vectors, vectors)
            for vector, number in zip(_unit(vectors), nearest[:, 0].tolist(), strict=True):
                self.sums[number] = self.sums.get(number, 0) + vector
                if _distance(vector, ivf.quantizer.reconstruct(number)) <= _SAME:
                    self.same.add(number)
        return self

    def determined(self) -> set[int]:
        """Return the lists whose centroid is an erased row's vector, or the mean of those nearest to it."""
        ivf = ivf_of(self.index)
        if ivf is None:
            return set()
        of_mean = {
            number
            for number, total in self.sums.items()
            if _distance(_unit(total), ivf.quantizer.reconstruct(number)) <= _SAME
        }
        return self.same | of_mean


def rows_in_lists(index: Any, numbers: Iterable[int], is_erased: IsRemoved) -> dict[int, np.ndarray]:
    """Return the addresses (n,) of the rows that stay in lists of a part of an index, by list."""
    ivf, map_ids = ivf_of(index), _addresses_of_ids(index)
    assert ivf is not None
    found = {number: map_ids(ids_in(lists_of(ivf), number)) for number in numbers}
    return {number: addresses[~is_erased(addresses)] for number, addresses in found.items()}


def change_of(
    near: NearLists,
    remaining: Mapping[int, np.ndarray],
    unused: set[Codeword],
    vectors_of: Callable[[np.ndarray], np.ndarray],
) -> TrainingChange:
    """Return new values for those that erased rows alone determined.

    Args:
        near: the lists of the erased rows. A list gets a new centroid if erased rows determined it, or if no
            row stays in it.
        remaining: addresses of the rows that stay in these lists, by list.
        unused: codewords that are parts of erased rows, and of no row that stays.
        vectors_of: returns the raw vectors (n, d) float32 of ascending addresses (n,).
    """
    empty = {number for number, addresses in remaining.items() if not len(addresses)}
    numbers = sorted(near.determined() | empty)
    nothing = TrainingChange.none()
    codewords = np.array(sorted(unused), dtype=np.int64).reshape(-1, 2)
    if not numbers:
        return replace(nothing, codewords=codewords)
    addresses = np.sort(np.concatenate([remaining[number] for number in numbers]))
    raw = vectors_of(addresses) if len(addresses) else np.zeros((0, near.index.d), dtype=np.float32)
    inside = _unit(to_space_of(near.index, raw)) if len(raw) else raw
    ivf = ivf_of(near.index)
    assert ivf is not None
    centroids = np.zeros((len(numbers), ivf.d), dtype=np.float32)
    for position, number in enumerate(numbers):
        if len(remaining[number]):
            rows = np.searchsorted(addresses, remaining[number])
            centroids[position] = _unit(inside[rows].sum(axis=0))
    return TrainingChange(np.array(numbers, dtype=np.int64), centroids, addresses, raw, codewords)


def _addresses_of_ids(index: Any) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function from ids in lists to addresses; the ids of a refined index are numbers of rows."""
    if index_refine_of(index) is None:
        return lambda ids: ids
    id_map = id_map_of(index)
    assert id_map is not None
    addresses = faiss.vector_to_array(id_map.id_map)
    return lambda ids: addresses[ids]


def _unit(vectors: np.ndarray) -> np.ndarray:
    """Return vectors (..., d) of length 1; zero stays zero."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, np.finfo(np.float32).tiny))


def _distance(one: np.ndarray, other: np.ndarray) -> float:
    """Return the distance of two vectors (d,), the second of which may have any length."""
    return float(np.linalg.norm(one - _unit(other)))
