"""Reserve memory for the rows that are added to an index."""

from typing import Any

from pipeline.index.library import faiss
from pipeline.index.refine import id_map_of, index_refine_of
from pipeline.index.structure import unwrap


def reserve_rows(index: Any, rows: int) -> None:
    """Reserve memory for `rows` more rows in the arrays that have an entry for every row.

    faiss copies an array that is full to one of double size, so that without this a flat or HNSW index would
    take up to three times its size while it grows. Inverted lists grow one by one and are left as they are.
    """
    ann, refined = unwrap(index), index_refine_of(index)
    has_graph = hasattr(ann, "hnsw")
    coded = [ann.storage if has_graph else ann, *([refined.refine_index] if refined is not None else [])]
    for codes in map(faiss.downcast_index, coded):
        if isinstance(codes, faiss.IndexFlatCodes) and codes.codes.is_owned:
            _reserve(codes.codes, rows * codes.code_size)
    if has_graph:
        # A row has two places per link in the lowest layer, and less than two in all others on average.
        _reserve(ann.hnsw.neighbors, rows * (ann.hnsw.nb_neighbors(0) + 2))
    if (ids := id_map_of(index)) is not None:
        _reserve(ids.id_map, rows)


def _reserve(array: Any, more: int) -> None:
    """Let an array of C++ have room for `more` entries: it keeps its memory when it becomes shorter."""
    size = array.size()
    array.resize(size + more)
    array.resize(size)
