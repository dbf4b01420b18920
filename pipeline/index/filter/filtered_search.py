"""Search the selected rows of an index.

A filtered search scores as many selected rows as an unfiltered search scores rows, so that its recall is not
lower: a query visits more inverted lists; a graph is searched for more rows; other kinds score all rows
anyway. If few rows are selected, the query is compared with each of them directly.

This is a module of its own, because it knows the kinds of index and nothing of releases.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from pipeline.index.files.parts import Parts
from pipeline.index.filter.address_set import AddressSet
from pipeline.index.filter.selection import ExactRows, SelectedRows, locate
from pipeline.index.library import faiss, map_in_threads
from pipeline.index.measure.searched_parts import best_of
from pipeline.index.measure.truth import NO_NEIGHBOUR
from pipeline.index.refine import id_map_of
from pipeline.index.search_parameters import Found, hnsw_parameters, nearest_lists, query_blocks, search_lists
from pipeline.index.structure import to_space_of, unwrap

# A graph is searched for this multiple of the number of answers among which k selected rows are expected.
_SPARE = 1.5
# A row that a graph visits costs as much as this many rows that are scored one after the other: the rows
# linked to it are scored, too, in random order. The number is an estimate.
_GRAPH_COST = 16


def search_selected(parts: Parts, selection: SelectedRows, vectors: np.ndarray, k: int) -> Found:
    """Search for the k nearest selected rows; see `Parts.search`.

    Returns:
        Scores and addresses (q, n), n the smaller of k and the number of selected rows.
    """
    vectors = np.ascontiguousarray(vectors, dtype=np.float32)
    k = min(k, selection.rows)
    if not k or not len(vectors):
        return np.zeros((len(vectors), k), np.float32), np.zeros((len(vectors), k), np.int64)
    if selection.exact is not None:
        return _search_exactly(selection.exact, to_space_of(parts.base, vectors), k)
    if len(selection.list_rows):
        return _search_lists(parts, selection, vectors, k)
    by_part = map_in_threads(
        lambda number: _search_without_lists(parts.indexes[number], selection, number, vectors, k),
        range(len(parts.indexes)),
    )
    return best_of(by_part, k)


def _search_exactly(rows: ExactRows, queries: np.ndarray, k: int) -> Found:
    scores, numbers = faiss.knn(queries, rows.vectors, k, metric=faiss.METRIC_INNER_PRODUCT)
    return best_of([(scores, rows.addresses[numbers])], k)


def _search_lists(parts: Parts, selection: SelectedRows, vectors: np.ndarray, k: int) -> Found:
    """Search inverted lists, with an nprobe for each query."""
    scores = np.full((len(vectors), k), -np.inf, dtype=np.float32)
    addresses = np.full((len(vectors), k), NO_NEIGHBOUR, dtype=np.int64)
    for nprobe, rows in _efforts(parts, selection, vectors, k):

        def search_part(part: Any, nprobe: int = nprobe, rows: np.ndarray = rows) -> Found:
            count, selector = max(1, min(k, part.ntotal)), selection.members.selector()
            return search_lists(part, vectors[rows], count, nprobe, selector)

        scores[rows], addresses[rows] = best_of(map_in_threads(search_part, parts.indexes), k)
    return scores, addresses


def _efforts(
    parts: Parts, selection: SelectedRows, vectors: np.ndarray, k: int
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield an nprobe and the numbers (n,) of the queries that need it.

    The index's nprobe is doubled until the lists of a query hold at least k selected rows, and as many
    selected rows as a query without a filter scores. So queries far from all selected rows visit more lists.
    """
    ivf = unwrap(parts.base)
    queries = to_space_of(parts.base, vectors)
    pending, nprobe = np.arange(len(vectors)), int(ivf.nprobe)
    rows = np.stack([selection.list_rows, selection.list_sizes])
    selected, scored = _rows_of_nearest_lists(ivf, rows, queries, nprobe)
    wanted = np.clip(scored, k, selection.rows)
    while nprobe < ivf.nlist and len(pending):
        is_done = selected >= wanted[pending]
        if is_done.any():
            yield nprobe, pending[is_done]
        pending, nprobe = pending[~is_done], min(2 * nprobe, ivf.nlist)
        if nprobe < ivf.nlist:
            selected = _rows_of_nearest_lists(ivf, rows[:1], queries[pending], nprobe)[0]
    if len(pending):
        yield nprobe, pending


def _rows_of_nearest_lists(ivf: Any, rows: np.ndarray, queries: np.ndarray, nprobe: int) -> np.ndarray:
    """Return the number of rows (n, q) in the `nprobe` nearest lists of each query.

    Args:
        rows: (n, nlist), number of rows in each list, by n ways of counting.
    """
    # the quantizer pads with -1, which is the index of the list without rows that is appended here
    rows = np.append(rows, np.zeros((len(rows), 1), dtype=rows.dtype), axis=1)
    found = np.zeros((len(rows), len(queries)), dtype=rows.dtype)
    for block in query_blocks(len(queries), nprobe):
        _, lists = nearest_lists(ivf, queries[block], nprobe)
        for number, counted in enumerate(rows):
            found[number, block] = counted[lists].sum(axis=1)
    return found


def _search_without_lists(
    part: Any, selection: SelectedRows, number: int, vectors: np.ndarray, k: int
) -> Found:
    """Search part `number` of an index without inverted lists."""
    rows = int(selection.part_rows[number])
    k = max(1, min(k, part.ntotal))
    if not rows:
        return np.full((len(vectors), k), -np.inf, np.float32), np.full((len(vectors), k), NO_NEIGHBOUR)
    ann = unwrap(part)
    if isinstance(ann, faiss.IndexPQ):  # takes no selector
        return _search_codes(part, ann, selection.members, vectors, k)
    if not hasattr(ann, "hnsw"):
        return _search_all(part, ann, selection.members, vectors, k)
    ratio = part.ntotal / rows
    count = min(part.ntotal, math.ceil(_SPARE * k * ratio))
    if rows <= _GRAPH_COST * ratio * ann.hnsw.efSearch:
        return _search_all(part, faiss.downcast_index(ann.storage), selection.members, vectors, k)
    ef_search = math.ceil(ratio * ann.hnsw.efSearch)
    parameters = hnsw_parameters(part, max(ef_search, count))
    scores, addresses = _only_selected(part.search(vectors, count, params=parameters), selection.members, k)
    is_short = addresses[:, -1] == NO_NEIGHBOUR
    if is_short.any():  # these queries are far from the selected rows
        storage = faiss.downcast_index(ann.storage)
        again = _search_all(part, storage, selection.members, vectors[is_short], k)
        scores[is_short], addresses[is_short] = again
    return scores, addresses


def _search_all(part: Any, codes: Any, members: AddressSet, vectors: np.ndarray, k: int) -> Found:
    """Score all selected rows of a part.

    Args:
        codes: the index inside `part` that stores the vectors in the order of adding.
    """
    id_map = id_map_of(part)
    assert id_map is not None
    selector = members.selector()
    parameters = faiss.SearchParameters(sel=faiss.IDSelectorTranslated(id_map.id_map, selector))
    scores, numbers = codes.search(to_space_of(part, vectors), k, params=parameters)
    stored = faiss.rev_swig_ptr(id_map.id_map.data(), part.ntotal)
    return scores, np.where(numbers >= 0, stored[numbers], NO_NEIGHBOUR)


def _search_codes(part: Any, pq: Any, members: AddressSet, vectors: np.ndarray, k: int) -> Found:
    """Score the selected rows of a product quantizer: their codes are copied to a new index."""
    blocks = list(locate(part, members))
    positions = np.concatenate([block.positions for block in blocks])
    addresses = np.concatenate([block.addresses for block in blocks])
    codes = faiss.rev_swig_ptr(pq.codes.data(), pq.ntotal * pq.code_size).reshape(pq.ntotal, pq.code_size)
    selected = faiss.IndexPQ(pq.d, pq.pq.M, pq.pq.nbits, pq.metric_type)
    selected.pq, selected.is_trained = pq.pq, True
    selected.add_sa_codes(codes[positions])
    scores, numbers = selected.search(to_space_of(part, vectors), k)
    return scores, np.where(numbers >= 0, addresses[numbers], NO_NEIGHBOUR)


def _only_selected(found: Found, members: AddressSet, k: int) -> Found:
    """Keep the first k selected rows of each query, with -inf and NO_NEIGHBOUR after the last one."""
    scores, addresses = found
    is_selected = members.contains(addresses)
    columns = np.argsort(~is_selected, axis=1, kind="stable")[:, :k]
    kept = np.take_along_axis(is_selected, columns, axis=1)
    return (
        np.where(kept, np.take_along_axis(scores, columns, axis=1), np.float32(-np.inf)),
        np.where(kept, np.take_along_axis(addresses, columns, axis=1), NO_NEIGHBOUR),
    )
