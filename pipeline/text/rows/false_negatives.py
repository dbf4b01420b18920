"""Find rows of a batch that share a text, so that each is a false negative of the other, and separate them.

Texts are compared as integer codes: two codes are equal if and only if the texts are.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from pipeline.settings.training import NEGATIVES
from pipeline.text.rows.roles import is_blank

# Limits of the search for a row to exchange: batches, and rows of each. Without limits it would take
# quadratic time if most rows repeat a text.
_MAX_BATCHES, _MAX_ROWS = 64, 16


def text_codes(table: pa.Table, roles: Sequence[str]) -> np.ndarray:
    """(n, roles) int64: a code for each text; equal texts have equal codes, in every column."""
    texts = pa.chunked_array([chunk for role in roles for chunk in table[role].chunks], pa.large_string())
    codes = texts.combine_chunks().dictionary_encode().indices
    return np.asarray(codes.to_numpy(), np.int64).reshape(len(roles), table.num_rows).T


def false_negatives(table: pa.Table, first: int, end: int) -> dict[str, np.ndarray]:
    """Masks of the candidates that are false negatives of the rows from `first` up to `end` of a batch.

    Args:
        table: all n rows of the batch, columns by role.
        first: number of the first row that gets a mask.
        end: number after the last row that gets a mask.

    Returns:
        For each of these roles that the table has:
        text: (end - first, n) bool: another row has an equal text.
        next, next3: (end - first, n) bool: candidate j is the sentence of that role in another row, and that
            row's text or sentence equals this row's text or sentence.
        anchor: (end - first, n (1 + k)) bool with k columns of hard negatives: candidate j is the positive of
            another row whose anchor or positive equals this row's anchor or positive, so it is a positive of
            this row too; candidate n + j, 2 n + j and so on is a negative that equals this row's anchor or
            positive.
    """
    masks = {}
    if "text" in table.column_names:
        masks["text"] = _rows_with_common_text(text_codes(table, ["text"]), first, end)
    for role in ("next", "next3"):
        if role in table.column_names:
            masks[role] = _rows_with_common_text(text_codes(table, ["text", role]), first, end)
    if {"anchor", "positive"} <= set(table.column_names):
        roles = ["anchor", "positive", *NEGATIVES]
        codes = text_codes(table, [role for role in roles if role in table.column_names])
        equal_negatives = [_is_among(column, codes[first:end, :2]) for column in codes.T[2:]]
        masks["anchor"] = np.concatenate(
            [_rows_with_common_text(codes[:, :2], first, end), *equal_negatives], axis=1
        )
    return masks


def without_missing(masks: Mapping[str, np.ndarray], table: pa.Table, rows: int) -> dict[str, np.ndarray]:
    """Add to the masks the hard negatives that are missing or blank, so that they are candidates of no row.

    Args:
        masks: masks of `false_negatives`; may be empty.
        table: all n rows whose texts are candidates.
        rows: number of rows that get a mask.
    """
    negatives = [table[role] for role in NEGATIVES if role in table.column_names]
    missing = [np.asarray(is_blank(column).to_numpy(), bool) for column in negatives]
    if not any(column.any() for column in missing) or "anchor" not in table.column_names:
        return dict(masks)
    excluded = np.concatenate([np.zeros(len(table), bool), *missing])
    return {**masks, "anchor": masks.get("anchor", np.zeros((rows, 1), bool)) | excluded}


def _rows_with_common_text(codes: np.ndarray, first: int, end: int) -> np.ndarray:
    """(end - first, n) bool: for each of the rows from `first` up to `end`, other rows that share a code."""
    common = np.any([_is_among(column, codes[first:end]) for column in codes.T], axis=0)
    common[np.arange(end - first), np.arange(first, end)] = False
    return np.asarray(common)


def _is_among(column: np.ndarray, row_codes: np.ndarray) -> np.ndarray:
    """(rows, n) bool: which codes of a column (n,) are among the codes (rows, k) of each row."""
    return np.asarray((column == row_codes[:, :, None]).any(axis=1))


def separate_repeats(order: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Exchange rows between batches so that, as far as possible, no batch has two rows with a text in common.

    A row that repeats a text of an earlier row of its batch is exchanged with a row of one of the next
    batches, the nearest first: if batches are sorted by length, the two rows have similar lengths.

    Args:
        order: (k, n) rows of k batches.
        codes: (rows, roles) codes of all rows.

    Returns:
        (k, n): the same rows, exchanged.
    """
    repeats = [
        (batch, position)
        for batch, rows in enumerate(order)
        for position in np.flatnonzero(repeats_earlier_row(codes[rows]))
    ]
    if not repeats or len(order) == 1:
        return order
    order = order.copy()
    texts = [frozenset(row) for row in codes.tolist()]
    uses = [Counter(code for row in rows for code in texts[row]) for rows in order]
    for batch, position in repeats:
        moved = texts[order[batch, position]]
        # an earlier exchange has already separated the rows with this text
        if all(uses[batch][code] == 1 for code in moved):
            continue
        partner = _find_partner(order, texts, uses, batch, moved)
        if partner is not None:
            other, _ = partner
            returned = texts[order[partner]]
            uses[batch].subtract(moved)
            uses[batch].update(returned)
            uses[other].subtract(returned)
            uses[other].update(moved)
            order[batch, position], order[partner] = order[partner], order[batch, position]
    return order


def _find_partner(
    order: np.ndarray,
    texts: Sequence[frozenset[int]],
    uses: Sequence[Counter[int]],
    batch: int,
    moved: frozenset[int],
) -> tuple[int, int] | None:
    """Find a row to exchange for a row of `batch`, such that neither batch then repeats one of their texts.

    Args:
        order: (k, n) rows of k batches.
        texts: codes of the texts of each row.
        uses: for each batch, the number of its rows by code.
        batch: number of the batch whose row is exchanged.
        moved: codes of that row.

    Returns:
        (batch, position) of the other row, or None.
    """
    for distance in range(1, min(_MAX_BATCHES, len(order))):
        other = (batch + distance) % len(order)
        if any(uses[other][code] for code in moved):
            continue
        for position in range(min(_MAX_ROWS, order.shape[1])):
            returned = texts[order[other, position]]
            # The moved row itself uses its codes once.
            if all(uses[batch][code] <= (code in moved) for code in returned):
                return other, position
    return None


def repeats_earlier_row(codes: np.ndarray) -> np.ndarray:
    """(n,) bool: rows of `codes` (n, roles) that share a code with an earlier row."""
    rows, values = np.repeat(np.arange(len(codes)), codes.shape[1]), codes.ravel()
    by_value = np.lexsort((rows, values))
    rows, values = rows[by_value], values[by_value]
    is_repeat = (np.diff(values) == 0) & (np.diff(rows) > 0)
    repeats = np.zeros(len(codes), bool)
    repeats[rows[1:][is_repeat]] = True
    return repeats
