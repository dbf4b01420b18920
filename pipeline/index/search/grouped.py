"""Search for the nearest documents: of each document, only the chunk that is nearest to the query counts."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from pipeline.index.measure.truth import NO_NEIGHBOUR

SearchRows = Callable[[np.ndarray, int], tuple[np.ndarray, np.ndarray]]
"""Searches for the k nearest rows of queries (q, d). Returns scores and addresses (q, at most k)."""


def search_grouped(
    search: SearchRows, parents_of: Callable[[np.ndarray], pa.Array], vectors: np.ndarray, k: int, rows: int
) -> tuple[np.ndarray, np.ndarray]:
    """Search for the best rows of the k nearest parents of each query.

    Twice as many rows are asked for until they have k parents, or there are no more rows.

    Args:
        search: searches for rows.
        parents_of: returns the parents of the rows at addresses (n,).
        vectors: (q, d) queries.
        rows: number of rows that `search` could find.

    Returns:
        Scores and addresses (q, n), n the smaller of k and `rows`, best first; NO_NEIGHBOUR where there are
        fewer parents.
    """
    k = min(k, rows)
    scores = np.full((len(vectors), k), -np.inf, dtype=np.float32)
    addresses = np.full((len(vectors), k), NO_NEIGHBOUR, dtype=np.int64)
    pending, wanted = np.arange(len(vectors)), k
    while len(pending):
        wanted = min(2 * wanted, rows)
        row_scores, row_addresses = search(vectors[pending], wanted)
        incomplete = []
        for query, of_rows, found in zip(pending.tolist(), row_scores, row_addresses, strict=True):
            valid = found != NO_NEIGHBOUR
            best = _first_of_each(parents_of(found[valid]))[:k]
            scores[query, : len(best)] = of_rows[valid][best]
            addresses[query, : len(best)] = found[valid][best]
            if len(best) < k and np.count_nonzero(valid) == wanted < rows:
                incomplete.append(query)
        pending = np.array(incomplete, dtype=np.int64)
    return scores, addresses


def _first_of_each(parents: pa.Array) -> np.ndarray:
    """Return the indices of the first row of each parent, ascending."""
    codes = parents.dictionary_encode().indices.to_numpy()
    return np.sort(np.unique(codes, return_index=True)[1])
