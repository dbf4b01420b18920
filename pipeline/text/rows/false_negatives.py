"""Rows of a batch with a text in common: each is a false negative of the other.

Texts are compared as integer codes: two codes are equal if and only if the texts are.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

# batches searched for an exchange, and rows of each: unlimited, the search is quadratic if most rows repeat
_MAX_BATCHES, _MAX_ROWS = 64, 16


def text_codes(table: pa.Table, roles: Sequence[str]) -> np.ndarray:
    """(n, roles) int64: a code for each text; equal texts have equal codes, in every column."""
    texts = pa.chunked_array([chunk for role in roles for chunk in table[role].chunks], pa.large_string())
    found = texts.combine_chunks().dictionary_encode().indices
    return np.asarray(found.to_numpy(), np.int64).reshape(len(roles), table.num_rows).T


def false_negatives(table: pa.Table, first: int, last: int) -> dict[str, np.ndarray]:
    """Masks of the candidates that are false negatives of the rows `first` to `last` of a batch.

    Args:
        table: all n rows of the batch, columns by role.
        first: first of the rows asked about.
        last: end of the rows asked about.

    Returns:
        For each of these roles that the table has:
        text: (last - first, n) bool: another row has an equal text.
        anchor: (last - first, n) bool, or (last - first, 2 n) with negatives: candidate j is the positive of
            another row whose anchor or positive equals this row's anchor or positive, so it is a positive of
            this row too; candidate n + j is a negative that equals this row's anchor or positive.
    """
    found = {}
    if "text" in table.column_names:
        found["text"] = _rows_with_common_text(text_codes(table, ["text"]), first, last)
    if {"anchor", "positive"} <= set(table.column_names):
        roles = ["anchor", "positive", "negative"]
        texts = text_codes(table, [role for role in roles if role in table.column_names])
        negatives = [_contains(column, texts[first:last, :2]) for column in texts.T[2:]]
        found["anchor"] = np.concatenate(
            [_rows_with_common_text(texts[:, :2], first, last), *negatives], axis=1
        )
    return found


def _rows_with_common_text(found: np.ndarray, first: int, last: int) -> np.ndarray:
    """(last - first, n) bool: other rows that share a code with the row."""
    common = np.any([_contains(column, found[first:last]) for column in found.T], axis=0)
    common[np.arange(last - first), np.arange(first, last)] = False
    return np.asarray(common)


def _contains(column: np.ndarray, own: np.ndarray) -> np.ndarray:
    """(rows, n) bool: which codes of a column (n,) are among the codes `own` (rows, k) of each row."""
    return np.asarray((column == own[:, :, None]).any(axis=1))


def separate_repeats(order: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Exchange rows between batches so that, as far as possible, no batch has two rows with a text in common.

    A row that repeats an earlier one of its batch changes places with a row of one of the next batches, the
    nearest first: if batches are sorted by length, the two rows have similar lengths.

    Args:
        order: (k, n) rows of k batches.
        found: (rows, roles) codes of all rows.

    Returns:
        (k, n): the same rows, exchanged.
    """
    repeats = [
        (batch, row) for batch, rows in enumerate(order) for row in np.flatnonzero(repeated(found[rows]))
    ]
    if not repeats or len(order) == 1:
        return order
    order = order.copy()
    texts = [frozenset(row) for row in found.tolist()]
    held = [Counter(code for row in rows for code in texts[row]) for rows in order]
    for batch, row in repeats:
        mine = texts[order[batch, row]]
        others = _batches_without(mine, held, batch) if any(held[batch][code] > 1 for code in mine) else ()
        partners = range(min(_MAX_ROWS, order.shape[1]))
        for other, partner in ((other, partner) for other in others for partner in partners):
            theirs = texts[order[other, partner]]
            if not any(held[batch][code] > (code in mine) for code in theirs):
                _move_texts(mine, held[batch], held[other])
                _move_texts(theirs, held[other], held[batch])
                order[batch, row], order[other, partner] = order[other, partner], order[batch, row]
                break
    return order


def _batches_without(texts: frozenset[int], held: Sequence[Counter[int]], batch: int) -> Iterator[int]:
    """Yield the batches that have none of the texts, beginning after `batch`."""
    for distance in range(1, min(_MAX_BATCHES, len(held))):
        other = (batch + distance) % len(held)
        if not any(held[other][code] for code in texts):
            yield other


def _move_texts(texts: frozenset[int], source: Counter[int], target: Counter[int]) -> None:
    source.subtract(texts)
    target.update(texts)


def repeated(found: np.ndarray) -> np.ndarray:
    """(n,) bool: rows of `found` (n, roles), codes of texts, that share a code with an earlier row."""
    rows, values = np.repeat(np.arange(len(found)), found.shape[1]), found.ravel()
    order = np.lexsort((rows, values))
    after = (values[order][1:] == values[order][:-1]) & (rows[order][1:] != rows[order][:-1])
    again = np.zeros(len(found), bool)
    again[rows[order][1:][after]] = True
    return again
