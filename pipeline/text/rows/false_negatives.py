"""Rows with a text in common: in one batch each of them is a false negative of the other."""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

_BATCHES, _PLACES = (
    64,
    16,
)  # looked at for one row, and rows of each: in a window where most rows are alike the search would be quadratic


def codes(table: pa.Table, roles: Sequence[str]) -> np.ndarray:
    """(n, roles) int64: equal numbers are equal texts, in whichever column."""
    texts = pa.chunked_array([chunk for role in roles for chunk in table[role].chunks], pa.large_string())
    found = texts.combine_chunks().dictionary_encode().indices
    return np.asarray(found.to_numpy(), np.int64).reshape(len(roles), table.num_rows).T


def repeated(table: pa.Table, roles: Sequence[str]) -> np.ndarray:
    """(n,) bool: rows that have a text, in any of the roles, in common with an earlier row."""
    return _repeated(codes(table, roles))


def false_negatives(table: pa.Table, first: int, last: int) -> dict[str, np.ndarray]:
    """For the rows first to last of a batch of n, by the role that is compared with candidates: text (last - first, n) bool, true where another row's text is equal;
    anchor (last - first, n, or 2 n with negatives), true where another row's positive, or any negative, equals the row's anchor or positive, or that row's anchor does:
    its positive is then one of this row's too, while its negative is as good as any. Roles that the table has not are not there.
    """
    found = {}
    if "text" in table.column_names:
        found["text"] = _others(codes(table, ["text"]), first, last)
    if {"anchor", "positive"} <= set(table.column_names):
        texts = codes(
            table, ["anchor", "positive", *(["negative"] if "negative" in table.column_names else [])]
        )
        negatives = [_among(column, texts[first:last, :2]) for column in texts.T[2:]]
        found["anchor"] = np.concatenate([_others(texts[:, :2], first, last), *negatives], axis=1)
    return found


def _others(found: np.ndarray, first: int, last: int) -> np.ndarray:
    """(last - first, n) bool: other rows that have a code with the row in common."""
    alike = np.any([_among(column, found[first:last]) for column in found.T], axis=0)
    alike[np.arange(last - first), np.arange(first, last)] = False
    return np.asarray(alike)


def _among(column: np.ndarray, own: np.ndarray) -> np.ndarray:
    """(rows, n) bool: codes of a column (n,) that are among those of each row, own (rows, k)."""
    return np.asarray((column == own[:, :, None]).any(axis=1))


def apart(order: np.ndarray, found: np.ndarray) -> np.ndarray:
    """(k, n) rows of k batches, each once, exchanged between batches so that none has two rows with a text in common, as far as that can be had.

    order: (k, n) rows; found: (rows, roles) their codes. A row that repeats an earlier one of its batch changes places with one of the next batches, the nearest first:
    where batches are sorted by length it meets its like.
    """
    repeats = [
        (batch, place) for batch, rows in enumerate(order) for place in np.flatnonzero(_repeated(found[rows]))
    ]
    if not repeats or len(order) == 1:
        return order
    order = order.copy()
    texts = [frozenset(row) for row in found.tolist()]
    held = [Counter(code for row in rows for code in texts[row]) for rows in order]
    for batch, place in repeats:
        mine = texts[order[batch, place]]
        others = _without(mine, held, batch) if any(held[batch][code] > 1 for code in mine) else ()
        for other, there in (
            (other, there) for other in others for there in range(min(_PLACES, order.shape[1]))
        ):
            theirs = texts[order[other, there]]
            if not any(held[batch][code] > (code in mine) for code in theirs):
                _move(mine, held[batch], held[other])
                _move(theirs, held[other], held[batch])
                order[batch, place], order[other, there] = order[other, there], order[batch, place]
                break
    return order


def _without(texts: frozenset[int], held: Sequence[Counter[int]], batch: int) -> Iterator[int]:
    """Batches that have none of the texts, those that follow `batch` first."""
    for after in range(1, min(_BATCHES, len(held))):
        other = (batch + after) % len(held)
        if not any(held[other][code] for code in texts):
            yield other


def _move(texts: frozenset[int], source: Counter[int], target: Counter[int]) -> None:
    source.subtract(texts)
    target.update(texts)


def _repeated(found: np.ndarray) -> np.ndarray:
    """(n,) bool: rows that share a code with an earlier row."""
    rows, values = np.repeat(np.arange(len(found)), found.shape[1]), found.ravel()
    order = np.lexsort((rows, values))
    after = (values[order][1:] == values[order][:-1]) & (rows[order][1:] != rows[order][:-1])
    again = np.zeros(len(found), bool)
    again[rows[order][1:][after]] = True
    return again
