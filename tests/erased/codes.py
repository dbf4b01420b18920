"""Rows in faiss files: their addresses, and the codes that stand for their vectors."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import faiss
import numpy as np

_PERMUTED = np.array([0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15])  # faiss: pq4_pack_codes


def read(file: Path) -> Any:
    """Read an index, with the lists that it has in a second file beside it."""
    return faiss.read_index(str(file), faiss.IO_FLAG_ONDISK_SAME_DIR)


def addresses(index: Any) -> np.ndarray:
    """Return the addresses that an index knows. Behind an id map, lists hold numbers of rows instead."""
    index = faiss.downcast_index(index)
    found = [np.zeros(0, np.int64)]
    if hasattr(index, "id_map"):
        return faiss.vector_to_array(index.id_map)
    if isinstance(index, faiss.IndexIVF):
        lists = index.invlists
        sizes = [(number, lists.list_size(number)) for number in range(index.nlist)]
        found += [faiss.rev_swig_ptr(lists.get_ids(number), size).copy() for number, size in sizes if size]
    found += [addresses(getattr(index, name)) for name in ("index", "base_index") if hasattr(index, name)]
    return np.concatenate(found)


def stored(index: Any, vectors: np.ndarray) -> Iterator[tuple[Any, np.ndarray]]:
    """Yield the components that hold codes, each with the vectors after the transforms before it.

    Args:
        vectors: (n, d) float32, as the encoder returns them.
    """
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexPreTransform):
        for number in range(index.chain.size()):
            vectors = faiss.downcast_VectorTransform(index.chain.at(number)).apply(vectors)
        yield from stored(index.index, vectors)
    elif isinstance(index, faiss.IndexRefine):
        yield from stored(index.base_index, vectors)
        yield from stored(index.refine_index, vectors)
    elif isinstance(index, faiss.IndexHNSW):
        yield from stored(index.storage, vectors)
    elif hasattr(index, "id_map"):
        yield from stored(index.index, vectors)
    else:
        yield index, vectors


def codes(component: Any, vectors: np.ndarray) -> np.ndarray:
    """Return the code of each vector, (n, bytes) uint8, as the component stores it."""
    vectors = np.ascontiguousarray(vectors, np.float32)
    if not isinstance(component, faiss.IndexIVF):
        return component.sa_encode(vectors)
    result = np.zeros((len(vectors), component.code_size), np.uint8)
    lists = component.quantizer.assign(vectors, 1).ravel().astype(np.int64)
    component.encode_vectors(
        len(vectors), faiss.swig_ptr(vectors), faiss.swig_ptr(lists), faiss.swig_ptr(result), False
    )
    return result


def stored_codes(component: Any) -> np.ndarray:
    """Return all codes of a component, (n, bytes) uint8, of slots without a row, too."""
    if isinstance(component, faiss.IndexIVFFastScan):
        return _interleaved_codes(component)
    size = component.sa_code_size() if not isinstance(component, faiss.IndexIVF) else component.code_size
    found = [np.zeros((0, size), np.uint8)]
    if isinstance(component, faiss.IndexIVF):
        for number in range(component.nlist):
            if rows := component.invlists.list_size(number):
                data = faiss.rev_swig_ptr(component.invlists.get_codes(number), rows * size)
                found.append(data.reshape(rows, size).copy())
    elif hasattr(component, "codes"):
        found.append(faiss.vector_to_array(component.codes).reshape(-1, size))
    return np.concatenate(found)


def _interleaved_codes(component: Any) -> np.ndarray:
    """Return the codes of a component that interleaves the codes of 32 rows."""
    lists, size = faiss.downcast_InvertedLists(component.invlists), component.code_size
    found = [np.zeros((0, size), np.uint8)]
    for number in range(component.nlist):
        if blocks := -(-lists.list_size(number) // lists.n_per_block):
            data = faiss.rev_swig_ptr(lists.get_codes(number), blocks * lists.block_size)
            pairs = data.reshape(-1, lists.block_size // 32, 32)
            rows = np.zeros((len(pairs), 32, pairs.shape[1]), np.uint8)
            for half, high in ((0, 0), (16, 4)):  # the first and the second quantizer of each pair
                part = pairs[:, :, half : half + 16]
                for slots, nibble in ((_PERMUTED, part & 15), (_PERMUTED + 16, part >> 4)):
                    rows[:, slots, :] |= np.swapaxes(nibble << high, 1, 2)
            found.append(rows.reshape(-1, pairs.shape[1])[:, :size])
    return np.concatenate(found)
